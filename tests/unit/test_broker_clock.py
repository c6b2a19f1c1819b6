"""A worker that owns nothing learns the broker's time from a record that means nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME

from connectors.kafka.broker_clock import BrokerClock
from delayservice.engine.claims import ClaimLog


class Stamped:
    """A message as the broker acknowledged it."""

    def __init__(self, kind: int) -> None:
        self._kind = kind

    def timestamp(self) -> tuple[int, int]:
        return self._kind, 1_900_000_000_000


class Producer:
    """Acknowledges what it is given. A real one is in the integration tests."""

    def __init__(self, kind: int) -> None:
        self._kind = kind
        self.records: list[tuple[bytes, bytes | None]] = []
        self.is_slow = False
        self._reports: list[Callable[[], None]] = []

    def list_topics(self, *_: object) -> None: ...

    def produce(self, _topic: str, *, key: bytes, value: bytes | None, **more: Any) -> None:
        self.records.append((key, value))
        self._reports.append(lambda: more["on_delivery"](None, Stamped(self._kind)))

    def flush(self, _timeout_s: float) -> None:
        while self._reports and not self.is_slow:
            self._reports.pop(0)()


@pytest.mark.parametrize(
    ("kind", "times"), [(TIMESTAMP_LOG_APPEND_TIME, 1), (TIMESTAMP_CREATE_TIME, 0)]
)
def test_only_a_time_that_the_broker_put_there_is_heard(kind: int, times: int) -> None:
    heard: list[tuple[int, float, float]] = []
    producer: Any = Producer(kind)
    clock = BrokerClock({}, "claims", "n1-0", lambda *told: heard.append(told), lambda _: producer)
    clock.ask()
    assert len(heard) == times
    log = ClaimLog()
    log.enter("me")
    log.take(0, *producer.records[0])
    assert log._words == {0: {}}, "the end of a writer that never was"
    for broker_ms, sent_s, acknowledged_s in heard:
        assert broker_ms == 1_900_000_000_000
        assert sent_s <= acknowledged_s


def test_an_answer_that_comes_with_the_next_one_has_the_time_of_its_own_record() -> None:
    heard: list[tuple[int, float, float]] = []
    producer: Any = Producer(TIMESTAMP_LOG_APPEND_TIME)
    clock = BrokerClock({}, "claims", "n1-0", lambda *told: heard.append(told), lambda _: producer)
    producer.is_slow = True
    clock.ask()
    between_s = time.monotonic()
    producer.is_slow = False
    clock.ask()
    (_, first_s, _), (_, second_s, _) = heard
    assert first_s <= between_s <= second_s
