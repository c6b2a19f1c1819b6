"""Judge process: reads a target topic as a consumer would, and compares every record with the load.

``python -m delay_devtools.bench.judge_process``, with a ``JudgePlan`` on standard input.
"""

from __future__ import annotations

import time
from operator import methodcaller
from typing import Any, Final, cast

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException

from delay_devtools import clients
from delay_devtools.bench import wire
from delay_devtools.bench.peers import clients as peers
from delay_devtools.bench.tally import Batch, BatchTally, Tracer

_BATCH: Final = 10_000
_POLL_S: Final = 0.1
_SOURCE_HEADER: Final = "delay-source"
_key_of: Final = methodcaller("key")
_value_of: Final = methodcaller("value")
_error_of: Final = methodcaller("error")


class JudgePlan(msgspec.Struct, frozen=True):
    """Records that a judge process expects, and conditions under which it stops reading.

    Attributes:
        client: librdkafka options of a consumer, or options of ``bench.peers.clients``.
        last_due_ms: last due time, epoch milliseconds; before it no record counts as lost.
        is_open: whether the number of records is unknown at first. The judge reads until the line
            ``stop N`` gives that number, takes the time of this line as last due time, and sends a
            ``Trace`` (arrival times by slice) as well.
        quiet_s: seconds without a record, once all have arrived, after which reading ends; to
            detect duplicates.
        stall_s: seconds without a record, after ``last_due_ms``, after which missing records count
            as lost.
    """

    client: dict[str, str]
    topic: str
    batch: Batch
    last_due_ms: int
    is_open: bool = False
    quiet_s: float = 1.0
    stall_s: float = 60.0


def judge(plan: JudgePlan) -> None:
    if "bootstrap.servers" in plan.client:
        consumer = clients.consumer(plan.client, f"judge-{plan.batch.tag}")
        consumer.assign(clients.partitions(consumer, plan.topic))
    else:
        consumer = cast("Consumer", peers.consumer(plan.client, plan.topic))
    wire.tell(wire.READY)
    _Judge(plan, consumer).run()
    consumer.close()


class _Judge:
    def __init__(self, plan: JudgePlan, consumer: Consumer) -> None:
        self._plan = plan
        self._consumer = consumer
        self._tally = BatchTally(plan.batch, is_open=plan.is_open)
        self._tracer = Tracer() if plan.is_open else None
        self._words = wire.listen() if plan.is_open else None
        self._last_due_s = plan.last_due_ms / 1_000

    def run(self) -> None:
        self._read()
        if self._tracer is not None:
            wire.tell(wire.TRACE, body=self._tracer.trace())
        wire.tell(wire.DONE, self._tally.seen, body=self._tally.verdict())

    def _read(self) -> None:
        tally = self._tally
        heard_s, told_s, was_complete = time.time(), time.monotonic(), False
        while True:
            messages = clients.take(self._consumer, _POLL_S, _BATCH)
            seen_s = time.time()
            if messages:
                heard_s = seen_s
                self._add(messages, seen_s)
            self._obey()
            if tally.is_complete and not was_complete:
                was_complete = True
                wire.tell(wire.COMPLETE, tally.distinct, at_s=seen_s)
            if self._is_over(heard_s, seen_s):
                break
            if time.monotonic() - told_s > wire.PROGRESS_S:
                told_s = time.monotonic()
                wire.tell(wire.PROGRESS, tally.distinct)
        if not was_complete:
            wire.tell(wire.COMPLETE, tally.distinct, at_s=heard_s)

    def _obey(self) -> None:
        if self._words is not None and not self._words.empty():
            _, _, sent = self._words.get().partition(" ")
            self._tally.close(int(sent))
            self._words = None
            self._last_due_s = time.time()

    def _is_over(self, heard_s: float, now_s: float) -> bool:
        if self._words is not None:
            return False
        if self._tally.is_complete:
            return now_s - heard_s > self._plan.quiet_s
        return now_s - max(heard_s, self._last_due_s) > self._plan.stall_s

    def _add(self, messages: list[Any], seen_s: float) -> None:
        if any(map(_error_of, messages)):
            messages = [message for message in messages if not _is_event(message)]
        self._tally.add(list(map(_key_of, messages)), list(map(_value_of, messages)), seen_s)
        if self._tracer is not None:
            self._tracer.add(map(_place_of, messages), int(seen_s * 1_000))


def _place_of(message: Any) -> tuple[int, int]:  # noqa: ANN401 (as _is_event)
    _, slice_no, _ = dict(message.headers())[_SOURCE_HEADER].rsplit(b":", 2)
    return int(slice_no), message.timestamp()[1]


def _is_event(message: Any) -> bool:  # noqa: ANN401 (the client's stubs make every field optional)
    error = message.error()
    if error is None:
        return False
    if error.fatal() or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise KafkaException(error)
    return True


if __name__ == "__main__":
    wire.serve(JudgePlan, judge)
