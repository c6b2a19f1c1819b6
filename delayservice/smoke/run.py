"""Parts of ``delayservice smoke`` that demo and benches share: one load, and its verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    AdminClient,
    NewTopic,
)

from delayservice.base.errors import ClusterError
from delayservice.base.tokens import with_tokens
from delayservice.smoke.helper import Helper
from delayservice.smoke.judge import JudgePlan, Verdict, judge
from delayservice.smoke.load import ADMIN_OPTIONS, QUIET, Loaded, LoadPlan, load
from delayservice.smoke.progress import Steps

_TARGET_PARTITIONS: Final = 4
_LOOK_S: Final = 0.5
_ANSWER_S: Final = 5.0


def await_topics(client: Mapping[str, str], delay_topic: str, target: str, wait_ms: int) -> None:
    """Wait for brokers and the delay topic, and create the target if it is missing."""
    admin = AdminClient({**with_tokens(client), **ADMIN_OPTIONS}, logger=QUIET)
    deadline_s = time.monotonic() + wait_ms / 1_000
    why = f"{delay_topic} does not exist; is the service running?"
    while True:
        try:
            topics = admin.list_topics(timeout=_ANSWER_S).topics
            if target not in topics:
                new = NewTopic(target, _TARGET_PARTITIONS)
                admin.create_topics([new])[target].result(_ANSWER_S)
            elif delay_topic in topics:
                return
        except (KafkaException, TimeoutError) as exc:
            why = f"{client['bootstrap.servers']}: {exc}"
        if time.monotonic() > deadline_s:
            raise ClusterError(f"not ready within {wait_ms / 1_000:g} s: {why}")
        time.sleep(_LOOK_S)


def send_and_judge(
    loading: LoadPlan,
    judging: JudgePlan,
    shown: Steps,
    meanwhile: Callable[[Helper, Helper], None] = lambda _load, _judge: None,
) -> tuple[Loaded, Verdict]:
    """Send a load, and read until all of it has arrived or none has for a while. ``meanwhile`` is
    called with load and judge while records are sent.

    Raises:
        ClusterError: a record was not acknowledged.
    """
    batch, to = loading.batch, ", ".join(judging.topics)
    sending = shown.bar(f"Sending to {to}", batch.n)
    receiving = shown.bar(f"Receiving from {to}", batch.wanted)
    # In this order: the client of some systems makes the topic.
    with Helper(load, loading, sending) as load_, Helper(judge, judging, receiving) as judge_:
        load_.tell()
        meanwhile(load_, judge_)
        loaded = load_.expect(Loaded)
        judge_.tell(loaded)
        return loaded, judge_.expect(Verdict)
