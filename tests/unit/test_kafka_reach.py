"""Kafka is lost when it leaves two questions unanswered, and found with the first answer."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from structlog.testing import capture_logs

from connectors.kafka.reach import KafkaReach


class Admin:
    """Answers or not. A real broker that falls silent is in the fault suite."""

    def __init__(self) -> None:
        self.answers = True
        self.asked = 0

    def list_topics(self, topic: str, timeout: float) -> None:
        assert topic == "delay"
        assert timeout == 2
        self.asked += 1
        if not self.answers:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def admin() -> Admin:
    return Admin()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reach(admin: Any, clock: Clock) -> KafkaReach:
    return KafkaReach(admin, "delay", clock)


def later(reach: KafkaReach, clock: Clock) -> bool:
    clock.now_s += 2
    return asked(reach)


def asked(reach: KafkaReach) -> bool:
    reach.check()
    return not reach.trouble


def test_it_asks_every_other_second(reach: KafkaReach, clock: Clock, admin: Admin) -> None:
    assert asked(reach)
    clock.now_s = 1.9
    assert asked(reach)
    assert admin.asked == 1
    clock.now_s = 2.0
    assert asked(reach)
    assert admin.asked == 2


def test_one_missed_answer_is_no_loss_and_two_are(
    reach: KafkaReach, clock: Clock, admin: Admin
) -> None:
    admin.answers = False
    assert later(reach, clock)
    assert not later(reach, clock)
    assert not asked(reach), "nor between two questions"


def test_a_missed_answer_is_asked_for_again_at_once(
    reach: KafkaReach, clock: Clock, admin: Admin
) -> None:
    assert later(reach, clock)
    admin.answers = False
    assert later(reach, clock)
    assert not asked(reach)
    assert admin.asked == 3


def test_an_answer_between_two_missed_ones_starts_the_count_anew(
    reach: KafkaReach, clock: Clock, admin: Admin
) -> None:
    for answers in (False, True, False):
        admin.answers = answers
        assert later(reach, clock)


def test_loss_and_return_are_logged_once(reach: KafkaReach, clock: Clock, admin: Admin) -> None:
    with capture_logs() as lines:
        for answers in (True, False, False, False, False, True, True):
            admin.answers = answers
            later(reach, clock)
    told = [line["event"] for line in lines if line["log_level"] != "debug"]
    assert told == ["kafka_lost", "kafka_found"]
