"""Copies a topic with a plain consumer and producer, as a reference for the service: outputs have
as many headers and as large transactions as the service's. One process, like a worker.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

from confluent_kafka import Producer

from connectors.kafka.clients import produce_patiently
from delayservice.base.errors import DelayServiceError
from delayservice.smoke.helper import READY, Counter
from delayservice.smoke.judge import KafkaSource
from delayservice.smoke.load import Headers, producer

_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class PassPlan:
    """``transactional_id`` is empty for an idempotent producer without transactions; ``headers``
    replace those of the input. ``interval_s``: begin a transaction with the records of this time
    (a paced load); 0: with ``transaction_records``.
    """

    consumer: Mapping[str, str]
    producer: Mapping[str, str]
    source: str
    target: str
    n: int
    transaction_records: int
    transactional_id: str
    headers: Headers
    interval_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Passed:
    """Time from the first fetch to the last commit, and CPU time of all threads."""

    seconds: float
    cpu_s: float


def passthrough(plan: PassPlan, pipe: Connection, counter: Counter) -> None:
    errors: list[str] = []
    source = KafkaSource(plan.consumer, [plan.source])
    sink = producer(plan.producer, errors, plan.transactional_id)
    sink.list_topics(plan.target, timeout=_TIMEOUT_S)
    if plan.transactional_id:
        sink.init_transactions(_TIMEOUT_S)
    pipe.send(READY)
    pipe.recv()
    started_s, started_cpu_s = time.monotonic(), time.process_time()
    source.begin()
    passed = 0
    while passed < plan.n:
        stop = min(passed + plan.transaction_records, plan.n)
        messages = source.gather(plan.interval_s) if plan.interval_s else []
        if plan.interval_s and not messages:
            continue
        if plan.transactional_id:
            sink.begin_transaction()
        passed += _copy(sink, plan, messages)
        while passed < stop and not plan.interval_s:
            passed += _copy(sink, plan, source.take(1.0, stop - passed))
        if plan.transactional_id:
            sink.commit_transaction(_TIMEOUT_S)
        counter.value = passed
    sink.flush(_TIMEOUT_S)
    if errors:
        raise DelayServiceError(f"{len(errors)} records were not passed on: {errors[0]}")
    pipe.send(Passed(time.monotonic() - started_s, time.process_time() - started_cpu_s))


def _copy(sink: Producer, plan: PassPlan, messages: list[Any]) -> int:
    produce, target, headers = sink.produce, plan.target, plan.headers
    for message in messages:
        # As the service has to.
        message.offset()
        message.headers()
        key, value = message.key(), message.value()
        try:
            produce(target, value, key, headers=headers)
        except BufferError:
            produce_patiently(sink, target, value, key, headers=headers)
    sink.poll(0)
    return len(messages)
