from __future__ import annotations

import pytest
from confluent_kafka import Message

from connectors.kafka.client import (
    RETRY_DELAYS_MS,
    Deduplicator,
    DelayProducer,
    InvalidRequestError,
    LruSeen,
    RetryLadder,
    own_headers,
)
from connectors.kafka.client.received import Received

NOWHERE: dict[str, object] = {"log_level": 0}  # no broker at all


def message(topic: str, headers: Received | None = None) -> Message:
    return Message(topic=topic, partition=1, offset=7, value=b"v", headers=list(headers or []))


def test_the_default_steps_are_rocketmqs_sixteen() -> None:
    minutes = [*range(1, 11), 20, 30, 60, 120]
    assert list(RETRY_DELAYS_MS) == [10_000, 30_000, *(m * 60_000 for m in minutes)]
    assert len(RETRY_DELAYS_MS) == 16


def test_failures_are_counted_in_the_groups_own_retry_topic_only() -> None:
    ladder = RetryLadder("g", DelayProducer(NOWHERE))
    failed: Received = [("delay-backoff", b"1s"), ("delay-retries", b"3")]
    assert ladder.retries(message("retry_g", failed)) == 3
    assert ladder.retries(message("orders", failed)) == 0
    assert ladder.retries(message("retry_other", failed)) == 0


@pytest.mark.parametrize("wrong", [{"delays": []}, {"delays": [-1]}, {"retry_topic": "delay_x"}])
def test_a_ladder_that_can_not_be_climbed_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError):
        RetryLadder("g", DelayProducer(NOWHERE), **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="no legal topic"):
        RetryLadder("a group", DelayProducer(NOWHERE))


def test_own_headers_are_those_that_the_service_delivers_as_they_are() -> None:
    headers: Received = [
        ("trace", b"1"),
        ("delay-source", b"t:0:1"),
        ("delay-id", b"x"),
        ("DELAY", b"3"),
        ("delay-mine", None),
        ("trace", b"2"),
    ]
    kept: Received = [("trace", b"1"), ("delay-mine", None), ("trace", b"2")]
    assert own_headers(message("orders", headers)) == kept


def test_work_that_is_done_is_not_done_again_for_another_copy() -> None:
    seen = Deduplicator()
    first = message("orders", [("delay-source", b"t:0:1")])
    copy = message("retry_g", [("delay-source", b"t:0:1")])
    assert not seen.is_done(first)
    assert not seen.is_done(copy), "asking is not doing"
    seen.done(first)
    assert seen.is_done(copy)
    assert not seen.is_done(message("orders", [("delay-source", b"t:0:2")]))


def test_a_bounded_memory_forgets_what_was_used_least_recently() -> None:
    seen = LruSeen(2)
    seen.add("a")
    seen.add("b")
    assert seen.has("a")
    seen.add("c")
    assert [seen.has(one) for one in "abc"] == [True, False, True]
    with pytest.raises(InvalidRequestError):
        LruSeen(0)
