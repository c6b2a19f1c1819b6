"""Passthrough process: copies a topic with a plain consumer and producer, as a reference for the
service. Outputs have as many headers and as large transactions as the service's outputs. It is one
Python process, like a worker, with a simple fast loop.

``python -m delay_devtools.bench.passthrough_process``, with a ``PassthroughPlan`` on standard
input.
"""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec
from confluent_kafka import Consumer, Producer

from connectors.kafka.clients import produce_patiently
from delay_devtools import clients
from delay_devtools.bench import wire
from delay_devtools.clients import Headers

_TIMEOUT_S: Final = 60.0
_BATCH: Final = 10_000


class PassthroughPlan(msgspec.Struct, frozen=True):
    """``transactional_id`` is empty for an idempotent producer without transactions; ``headers``
    replace those of the input.
    """

    consumer: dict[str, str]
    producer: dict[str, str]
    source: str
    target: str
    n: int
    transaction_records: int
    transactional_id: str
    headers: list[tuple[str, str]]


class PassthroughCost(msgspec.Struct, frozen=True):
    """Cost of copying all records, from the first fetch to the last commit; ``cpu_s`` of all
    threads.
    """

    seconds: float
    cpu_s: float
    transactions: int


def pass_through(plan: PassthroughPlan) -> None:
    errors: list[str] = []
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
    wire.tell(wire.DONE, plan.n, body=PassthroughCost(seconds, cpu_s, transactions))
    consumer.close()


def _pass(plan: PassthroughPlan, consumer: Consumer, producer: Producer) -> int:
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
    produce = producer.produce
    passed = 0
    for message in messages:
        if message.error() is not None:
            continue
        message.offset()
        message.headers()
        key, value = message.key(), message.value()
        try:
            produce(target, value, key, headers=headers)
        except BufferError:
            produce_patiently(producer, target, value, key, headers=headers)
        passed += 1
    producer.poll(0)
    return passed


if __name__ == "__main__":
    wire.serve(PassthroughPlan, pass_through)
