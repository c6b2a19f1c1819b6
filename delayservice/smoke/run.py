"""``delayservice smoke``: sends delayed records through a running service, and checks arrivals."""

from __future__ import annotations

import json
import random
import threading
import time
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    AdminClient,
    NewTopic,
)
from rich.console import Console

from delayservice.base.errors import ClusterError
from delayservice.smoke.judge import Judge, SmokeVerdict, quantile
from delayservice.smoke.progress import Steps, steps, stop_signals
from delayservice.smoke.sending import QUIET, Sending, plan

_TARGET_PARTITIONS: Final = 4
_LOOK_S: Final = 0.5
_ANSWER_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Load:
    """Options of a smoke test: the records to send, their rate, and topics. The brokers need not be
    up yet; ``target`` is created if it is missing.
    """

    bootstrap: str
    records: int
    per_s: float
    delay_ms_max: int
    delay_topic: str
    target: str
    wait_s: float


def run(load: Load, *, as_json: bool) -> int:
    """Send the records, read until all have arrived or none has for a minute, and print a report,
    as JSON in the last line; ``as_json``: nothing else on standard output. Return the exit status:
    0: each record arrived once, unaltered and not early; else 1.

    Raises:
        ClusterError: no brokers or no delay topic in time, or a record was not acknowledged.
    """
    console = Console(stderr=as_json)
    with stop_signals(), steps(console, is_shown=console.is_terminal) as shown:
        with shown.doing(f"Waiting for {load.delay_topic}"):
            _await_topics(load)
        verdict = _send_and_judge(load, shown)
    report = _report(load, verdict)
    if not as_json:
        console.print(
            f"{report['delivered']:,} of {load.records:,} records arrived in {load.target}, "
            f"{'each once and none early' if verdict.is_good else 'and not as they should'}",
            style="bold green" if verdict.is_good else "bold red",
            highlight=False,
        )
    print(json.dumps(report))  # noqa: T201  # the machine-readable last line
    return 0 if verdict.is_good else 1


def _await_topics(load: Load) -> None:
    admin = AdminClient({"bootstrap.servers": load.bootstrap}, logger=QUIET)
    deadline_s = time.monotonic() + load.wait_s
    tick = threading.Event()  # awaited with a bound: the condition lies in other processes
    why = f"{load.delay_topic} does not exist; is the service running?"
    while True:
        try:
            topics = admin.list_topics(timeout=_ANSWER_S).topics
            if load.target not in topics:
                new = NewTopic(load.target, _TARGET_PARTITIONS)
                admin.create_topics([new])[load.target].result(_ANSWER_S)
            elif load.delay_topic in topics:
                return
        except (KafkaException, TimeoutError) as exc:
            why = f"{load.bootstrap}: {exc}"
        if time.monotonic() > deadline_s:
            raise ClusterError(f"not ready within {load.wait_s:.0f} s: {why}")
        tick.wait(_LOOK_S)


def _send_and_judge(load: Load, shown: Steps) -> SmokeVerdict:
    # A new seed for every run, so that no record is mistaken for one of an earlier run.
    seed = random.SystemRandom().getrandbits(48)
    planned = plan(load.records, (load.target,), load.delay_ms_max, seed)
    judge = Judge(load.bootstrap, [load.target], from_end=True)
    bar = shown.bar("Sending", load.records)
    receiving = shown.bar("Receiving with read_committed", load.records)
    sending = Sending(load.bootstrap, load.delay_topic, planned, load.per_s, load.records, bar)
    try:
        sending.start()
        with judge.reading(receiving.at):
            sending.finish()
        judge.read_to_end(load.records, receiving.at)
        return judge.verdict(sending.sent)
    finally:
        judge.close()


def _report(load: Load, verdict: SmokeVerdict) -> dict[str, int]:
    late = sorted(one.seen_ms - one.due_ms for one in verdict.arrivals.values())
    return {
        "sent": load.records,
        "delivered": len(verdict.arrivals),
        "lost": len(verdict.lost),
        "duplicated": len(verdict.duplicated),
        "early": len(verdict.early),
        "altered": len(verdict.altered) + len(verdict.strangers),
        "lateness_ms_p50": quantile(late, 0.5),
        "lateness_ms_p99": quantile(late, 0.99),
        "lateness_ms_max": quantile(late, 1.0),
    }
