"""Where logs end, by what brokers answer."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from connectors.kafka import log_ends as module
from connectors.kafka.log_ends import LATEST, log_bounds, log_ends, offsets_of
from delayservice.base.errors import KafkaEdgeError
from delayservice.engine.ports import Bounds

PLACE = ("delay_topic_a", 0)


class Broker:
    """Answers with the given errors first, then with an offset."""

    def __init__(self, errors: Iterator[int]) -> None:
        self.errors = errors
        self.looked_up: list[str] = []

    def list_offsets(
        self, wanted: Mapping[TopicPartition, Any], **_: object
    ) -> dict[TopicPartition, Future[Any]]:
        code = next(self.errors, None)
        answer: Future[Any] = Future()
        if code is None:
            answer.set_result(SimpleNamespace(offset=7, leader_epoch=3))
        else:
            answer.set_exception(KafkaException(KafkaError(code)))
        return dict.fromkeys(wanted, answer)

    def list_topics(self, topic: str, timeout: float) -> None:
        assert timeout > 0
        self.looked_up.append(topic)


def admin_of(broker: Broker) -> AdminClient:
    return cast("AdminClient", broker)


@pytest.mark.parametrize("code", sorted(module.STALE))
def test_where_a_leader_is_elected_the_question_is_asked_again(code: int) -> None:
    broker = Broker(iter([code, code]))
    assert offsets_of(admin_of(broker), [PLACE], LATEST) == {PLACE: 7}
    assert broker.looked_up == [PLACE[0]] * 2
    broker = Broker(iter([code]))
    assert log_bounds(admin_of(broker), *PLACE) == Bounds(7, 7, 3)
    assert broker.looked_up == [PLACE[0]]


def test_any_other_refusal_is_told_at_once() -> None:
    broker = Broker(iter([KafkaError.TOPIC_AUTHORIZATION_FAILED]))
    with pytest.raises(KafkaEdgeError, match="delay_topic_a:0"):
        offsets_of(admin_of(broker), [PLACE], LATEST)
    assert not broker.looked_up


def test_an_election_that_does_not_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASK_TIMEOUT_S", 0.2)
    broker = Broker(iter([KafkaError.NOT_LEADER_FOR_PARTITION] * 100))
    with pytest.raises(KafkaEdgeError, match="NOT_LEADER"):
        offsets_of(admin_of(broker), [PLACE], LATEST)


def test_a_single_attempt_finds_the_new_leader_next_time() -> None:
    broker = Broker(iter([KafkaError.FENCED_LEADER_EPOCH]))
    assert log_ends(admin_of(broker), [PLACE]) == {}
    assert broker.looked_up == [PLACE[0]]
    assert log_ends(admin_of(broker), [PLACE]) == {PLACE: 7}


def test_bounds_do_not_wait_for_an_election() -> None:
    asked = iter([KafkaError.LEADER_NOT_AVAILABLE] * 2)
    with pytest.raises(KafkaEdgeError, match="delay_topic_a:0 starts and ends"):
        log_bounds(admin_of(Broker(asked)), *PLACE)
    assert next(asked, None) is None, "it is asked twice"


def test_an_offset_that_no_log_has_is_no_answer() -> None:
    """The client gives it, and no error, when the connection to a leader breaks."""
    answer: Future[Any] = Future()
    answer.set_result(SimpleNamespace(offset=OFFSET_INVALID, leader_epoch=None))
    admin = cast(
        "AdminClient",
        SimpleNamespace(list_offsets=lambda wanted, **_: dict.fromkeys(wanted, answer)),
    )
    with pytest.raises(KafkaEdgeError, match="connection to the leader broke"):
        log_bounds(admin, *PLACE)
    assert log_ends(admin, [PLACE]) == {}
