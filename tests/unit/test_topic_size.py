"""Topics that are not known to every broker yet."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from connectors.kafka.topics import TopicKeeper
from delayservice.config.settings import Settings


class Broker:
    """Answers each question about a configuration with an error."""

    def __init__(self, code: int) -> None:
        self._error = KafkaException(KafkaError(code))

    def describe_configs(self, resources: list[Any]) -> dict[Any, Future[Any]]:
        futures: dict[Any, Future[Any]] = {resource: Future() for resource in resources}
        for future in futures.values():
            future.set_exception(self._error)
        return futures


@pytest.mark.parametrize(
    ("code", "is_fatal"),
    [(KafkaError.UNKNOWN_TOPIC_OR_PART, False), (KafkaError.TOPIC_AUTHORIZATION_FAILED, True)],
)
def test_a_topic_that_a_broker_does_not_know_yet_is_not_taken_for_a_missing_right(
    code: int,
    is_fatal: bool,  # noqa: FBT001  # a parameter of the test
) -> None:
    settings = Settings()
    own = (settings.topics.checkpoint, settings.topics.claims_topic)
    keeper = TopicKeeper(cast("Any", Broker(code)), settings)
    existing = dict.fromkeys(own, ((1, (1, 2, 3)),))
    problems = keeper._own_problems(existing, keeper._configs(own), None)
    assert [one.is_fatal for one in problems] == [is_fatal] * 2
    assert all(("DescribeConfigs" in one.text) == is_fatal for one in problems)
