"""The judge of ``smoke`` on a topic that was made a moment ago."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from delayservice.base.errors import ClusterError
from delayservice.smoke import judge
from delayservice.smoke.judge import Judge

END = 7


class Starting:
    """A client of brokers that have no leader yet for the first ``refusals`` questions."""

    refusals = 0

    def __init__(self, *_: object, **__: object) -> None:
        self.assigned: list[TopicPartition] = []

    def list_topics(self, *_: object, **__: object) -> Any:
        topic = type("Topic", (), {"error": None, "partitions": {0: None}})
        return type("Metadata", (), {"topics": {"orders": topic}})

    def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
        if Starting.refusals:
            Starting.refusals -= 1
            raise KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
        return 0, END

    def assign(self, places: list[TopicPartition]) -> None:
        self.assigned = places


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> type[Starting]:
    monkeypatch.setattr(judge, "Consumer", Starting)
    return Starting


def test_it_waits_for_the_leaders_of_a_new_topic(starting: type[Starting]) -> None:
    starting.refusals = 3
    made = Judge("brokers", ["orders"], from_end=True)
    assert made._starts == {("orders", 0): END}
    assert starting.refusals == 0


def test_a_topic_without_a_leader_is_an_error_with_a_sentence(
    starting: type[Starting], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "_TOPICS_S_MAX", 0.2)
    starting.refusals = 1_000_000
    with pytest.raises(ClusterError, match="orders/0 has no end to read from"):
        Judge("brokers", ["orders"], from_end=True)
    starting.refusals = 0
