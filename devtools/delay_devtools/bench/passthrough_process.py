"""The limit: a bare consume and produce of the same bytes, with as many headers, in as large
transactions. One Python process, as a worker is, and the plainest loop that is fast.

``python -m delay_devtools.bench.passthrough_process``, with a ``PassthroughPlan`` on standard
input.
"""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec
from confluent_kafka import Consumer, KafkaException, Producer

from delay_devtools.bench import clients, wire
from delay_devtools.bench.clients import Headers

_TIMEOUT_S: Final = 60.0
_BATCH: Final = 10_000


class PassthroughPlan(msgspec.Struct, frozen=True):
    """What to pass on.

    Attributes:
        consumer: librdkafka options of a consumer.
        producer: librdkafka options of a producer.
        source: topic that is read from its start.
        target: topic that is written.
        n: how many records.
        transaction_records: records in each transaction.
        transactional_id: empty for an idempotent producer without transactions.
        headers: what every output carries, names and values.
    """

    consumer: dict[str, str]
    producer: dict[str, str]
    source: str
    target: str
    n: int
    transaction_records: int
    transactional_id: str
    headers: list[tuple[str, str]]


class Passed(msgspec.Struct, frozen=True):
    """What it took, from the first request to the last acknowledged commit.

    Attributes:
        seconds: of the wall clock.
        cpu_s: of this process, user and system, all its threads.
        transactions: that were committed.
    """

    seconds: float
    cpu_s: float
    transactions: int


def main() -> None:
    """Be the process."""
    plan = wire.read_plan(PassthroughPlan)
    errors: list[str] = []
    try:
        consumer = clients.consumer(plan.consumer, "passthrough")
        partitions = clients.partitions(consumer, plan.source)
        producer = clients.producer(plan.producer, plan.transactional_id, errors)
        producer.list_topics(plan.target, timeout=30)
        if plan.transactional_id:
            producer.init_transactions(_TIMEOUT_S)
        wire.tell(wire.READY)
        wire.await_word(wire.GO)
        started_s, started_cpu_s = time.monotonic(), time.process_time()
        consumer.assign(partitions)
        transactions = _pass(plan, consumer, producer)
        seconds, cpu_s = time.monotonic() - started_s, time.process_time() - started_cpu_s
        if errors:
            wire.tell(wire.FAILED, why=f"{len(errors)} records were not passed on: {errors[0]}")
        wire.tell(wire.DONE, plan.n, body=Passed(seconds, cpu_s, transactions))
        consumer.close()
    except KafkaException as exc:
        wire.tell(wire.FAILED, why=str(exc))


def _pass(plan: PassthroughPlan, consumer: Consumer, producer: Producer) -> int:
    """Everything; how many transactions."""
    headers: Headers = [(name, value.encode()) for name, value in plan.headers]
    passed = transactions = 0
    while passed < plan.n:
        stop = min(passed + plan.transaction_records, plan.n)
        if plan.transactional_id:
            producer.begin_transaction()
        while passed < stop:
            messages = clients.take(consumer, 1.0, min(stop - passed, _BATCH))
            passed += _produce(producer, plan.target, messages, headers)
        if plan.transactional_id:
            producer.commit_transaction(_TIMEOUT_S)
            transactions += 1
        wire.tell(wire.PROGRESS, passed)
    producer.flush(_TIMEOUT_S)
    return transactions


def _produce(producer: Producer, target: str, messages: list[Any], headers: Headers) -> int:
    """Pass on what is a record; how many."""
    produce = producer.produce
    passed = 0
    for message in messages:
        if message.error() is not None:
            continue
        message.offset()
        message.headers()
        key, value = message.key(), message.value()
        while True:
            try:
                produce(target, value, key, headers=headers)
            except BufferError:
                producer.poll(0.01)
                continue
            break
        passed += 1
    producer.poll(0)
    return passed


if __name__ == "__main__":
    main()
