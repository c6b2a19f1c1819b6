"""``delayservice smoke``: sends delayed records through a running service, and checks arrivals."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    AdminClient,
    NewTopic,
)
from rich.console import Console

from delayservice.base.errors import ClusterError
from delayservice.smoke.helper import Helper
from delayservice.smoke.judge import JudgePlan, Verdict, judge
from delayservice.smoke.load import QUIET, Batch, Loaded, LoadPlan, load
from delayservice.smoke.progress import Steps, steps, stop_signals

_TARGET_PARTITIONS: Final = 4
_SIZE: Final = 200
_LOOK_S: Final = 0.5
_ANSWER_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Smoke:
    """Options of a smoke test. The brokers need not be up yet; ``target`` is created if it is
    missing. The clients are options of librdkafka.
    """

    admin: Mapping[str, str]
    producer: Mapping[str, str]
    consumer: Mapping[str, str]
    records: int
    per_s: float
    delay_ms_max: int
    delay_topic: str
    target: str
    wait_ms: int


def run(smoke: Smoke, console: Console) -> Verdict:
    """Send the records, and read until all have arrived or none has for a minute.

    Raises:
        ClusterError: no brokers or no delay topic in time, or a record was not acknowledged.
    """
    with stop_signals(), steps(console, is_shown=console.is_terminal) as shown:
        with shown.doing(f"Waiting for {smoke.delay_topic}"):
            _await_topics(smoke)
        return _send_and_judge(smoke, shown)


def _await_topics(smoke: Smoke) -> None:
    admin = AdminClient({**smoke.admin, "allow.auto.create.topics": False}, logger=QUIET)
    deadline_s = time.monotonic() + smoke.wait_ms / 1_000
    why = f"{smoke.delay_topic} does not exist; is the service running?"
    while True:
        try:
            topics = admin.list_topics(timeout=_ANSWER_S).topics
            if smoke.target not in topics:
                new = NewTopic(smoke.target, _TARGET_PARTITIONS)
                admin.create_topics([new])[smoke.target].result(_ANSWER_S)
            elif smoke.delay_topic in topics:
                return
        except (KafkaException, TimeoutError) as exc:
            why = f"{smoke.admin['bootstrap.servers']}: {exc}"
        if time.monotonic() > deadline_s:
            raise ClusterError(f"not ready within {smoke.wait_ms / 1_000:g} s: {why}")
        time.sleep(_LOOK_S)


def _send_and_judge(smoke: Smoke, shown: Steps) -> Verdict:
    # A new tag and seed for every run, so that no record is mistaken for one of an earlier run.
    tag, seed = secrets.token_hex(4).encode(), secrets.randbits(48)
    batch = Batch(tag, smoke.records, _SIZE, seed, is_mixed=True)
    targets = (smoke.target,)
    sending = shown.bar("Sending", batch.n)
    receiving = shown.bar("Receiving with read_committed", batch.wanted)
    judging = JudgePlan(smoke.consumer, targets, batch, from_end=True)
    loading = LoadPlan(
        smoke.producer,
        smoke.delay_topic,
        targets,
        batch,
        span_ms=smoke.delay_ms_max,
        per_s=smoke.per_s,
    )
    with Helper(judge, judging, receiving) as judge_, Helper(load, loading, sending) as load_:
        load_.tell()
        judge_.tell(load_.expect(Loaded))
        return judge_.expect(Verdict)
