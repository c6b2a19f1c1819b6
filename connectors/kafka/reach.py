"""Whether this node reaches Kafka at all.

An owner with nothing to commit does not notice that it is cut off: no records come, and no error
either. So somebody has to ask.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import structlog
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

_EVERY_S: Final = 2.0
_ANSWER_S: Final = 2.0
_LOST_AFTER: Final = 2
"""Questions in a row without an answer; one may meet a broker that has just gone."""

_log = structlog.get_logger(__name__)


class KafkaReach:
    """Asks every other second, and without a break while there is no answer.

    Args:
        admin: the client to ask with.
        topic: any topic that exists.
        monotonic_s: the clock.
    """

    def __init__(
        self, admin: AdminClient, topic: str, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._admin = admin
        self._topic = topic
        self._monotonic_s = monotonic_s
        self._asked_s = float("-inf")
        self._missed = 0

    def check(self) -> bool:
        """Whether Kafka answers; blocks for two seconds when it does not."""
        if self._monotonic_s() - self._asked_s < _EVERY_S:
            return self._missed < _LOST_AFTER
        was_lost = self._missed >= _LOST_AFTER
        try:
            self._admin.list_topics(self._topic, timeout=_ANSWER_S)
            self._missed = 0
            self._asked_s = self._monotonic_s()
        except KafkaException as exc:
            self._missed += 1  # and ask again at once
            _log.debug("kafka_did_not_answer", why=str(exc))
        is_lost = self._missed >= _LOST_AFTER
        if is_lost and not was_lost:
            _log.error("kafka_lost", hint="this node owns nothing until a broker answers again")
        elif was_lost and not is_lost:
            _log.info("kafka_found")
        return not is_lost
