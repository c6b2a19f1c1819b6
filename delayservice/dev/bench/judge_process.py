"""Reads a target topic as a consumer would, and judges every record.

``python -m delayservice.dev.bench.judge_process``, with a ``JudgePlan`` on standard input.
"""

from __future__ import annotations

import time
from operator import methodcaller
from typing import Any, Final

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException

from delayservice.dev.bench import clients, wire
from delayservice.dev.bench.records import Batch
from delayservice.dev.bench.tally import Tally

_BATCH: Final = 10_000
_POLL_S: Final = 0.1
_key_of: Final = methodcaller("key")
_value_of: Final = methodcaller("value")
_error_of: Final = methodcaller("error")


class JudgePlan(msgspec.Struct, frozen=True):
    """What to await.

    Attributes:
        client: librdkafka options of a consumer.
        topic: target topic, read from its start.
        batch: what was sent.
        last_due_ms: nothing is missed before this time, epoch milliseconds.
        quiet_s: how long it goes on reading after the last number came, for duplicates.
        stall_s: how long nothing may come, after ``last_due_ms``, until the rest counts as lost.
    """

    client: dict[str, str]
    topic: str
    batch: Batch
    last_due_ms: int
    quiet_s: float = 1.0
    stall_s: float = 60.0


def main() -> None:
    """Be the process."""
    plan = wire.read_plan(JudgePlan)
    try:
        consumer = clients.consumer(plan.client, f"judge-{plan.batch.tag}")
        consumer.assign(clients.partitions(consumer, plan.topic))
        wire.tell(wire.READY)
        tally = Tally(plan.batch)
        _judge(plan, consumer, tally)
        wire.tell(wire.DONE, tally.seen, body=tally.verdict())
        consumer.close()
    except KafkaException as exc:
        wire.tell(wire.FAILED, why=str(exc))


def _judge(plan: JudgePlan, consumer: Consumer, tally: Tally) -> None:
    heard_s, told_s, was_complete = time.time(), time.monotonic(), False
    while True:
        messages = clients.take(consumer, _POLL_S, _BATCH)
        seen_s = time.time()
        if messages:
            heard_s = seen_s
            _add(messages, tally, seen_s)
        if tally.is_complete and not was_complete:
            was_complete = True
            wire.tell(wire.COMPLETE, tally.distinct, at_s=seen_s)
        patience_s = plan.quiet_s if tally.is_complete else plan.stall_s
        waits_from_s = heard_s if tally.is_complete else max(heard_s, plan.last_due_ms / 1_000)
        if seen_s - waits_from_s > patience_s:
            break
        if time.monotonic() - told_s > wire.PROGRESS_S:
            told_s = time.monotonic()
            wire.tell(wire.PROGRESS, tally.distinct)
    if not was_complete:
        wire.tell(wire.COMPLETE, tally.distinct, at_s=heard_s)


def _add(messages: list[Any], tally: Tally, seen_s: float) -> None:
    if any(map(_error_of, messages)):
        messages = [message for message in messages if not _is_event(message)]
    tally.add(list(map(_key_of, messages)), list(map(_value_of, messages)), seen_s)


def _is_event(message: Any) -> bool:  # noqa: ANN401 (the client's stubs make every field optional)
    """Whether this is no record but news of the connection, which the client mends itself."""
    error = message.error()
    if error is None:
        return False
    if error.fatal() or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise KafkaException(error)
    return True


if __name__ == "__main__":
    main()
