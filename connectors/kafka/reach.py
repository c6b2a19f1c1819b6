"""Finds out whether this node reaches Kafka at all.

An owner with nothing to commit does not notice that it is cut off: no records come, and no error
either. So this node asks.
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

    Attributes:
        trouble: why Kafka can't be reached; empty: it can.

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
        self.trouble = ""

    def check(self) -> None:
        """Ask when it is time; blocks for two seconds when there is no answer."""
        if self._monotonic_s() - self._asked_s < _EVERY_S:
            return
        why = ""
        try:
            self._admin.list_topics(self._topic, timeout=_ANSWER_S)
            self._missed = 0
            self._asked_s = self._monotonic_s()
        except KafkaException as exc:
            self._missed += 1  # and ask again at once
            why = str(exc)
            _log.debug("kafka_did_not_answer", why=why)
        was_lost, is_lost = bool(self.trouble), self._missed >= _LOST_AFTER
        self.trouble = why if is_lost else ""
        if is_lost and not was_lost:
            _log.error("kafka_lost", why=why, hint="slices go to nodes that reach Kafka")
        elif was_lost and not is_lost:
            _log.info("kafka_found")
