"""Partitions of an id in a delay topic: its home, and those where it lay before partitions were
added.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from confluent_kafka import KafkaException, Producer

from delayservice.base.errors import InvalidRequestError, KafkaEdgeError
from delayservice.contract.partitioner import partition_for

REFRESH_S: Final = 60.0
"""Time for which a partition count is used before the cluster is asked again, in seconds."""

_ANSWER_S: Final = 15.0

_LOGGER: Final = logging.getLogger(__name__)


class Places:
    """Finder of the partitions of ids in one delay topic, from its partition count. Thread-safe.

    Args:
        producer: producer by which the cluster is asked for the partition count.
        topic: the delay topic.
        partitions_before: former partition counts of the topic.
        refresh_s: time for which a count is used before the cluster is asked again, seconds.
        monotonic_s: returns the time of a monotonic clock, seconds.

    Raises:
        InvalidRequestError: ``partitions_before`` holds a count below 1.
    """

    def __init__(
        self,
        producer: Producer,
        topic: str,
        partitions_before: Iterable[int] = (),
        refresh_s: float = REFRESH_S,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._refresh_s = refresh_s
        self._monotonic_s = monotonic_s
        self._former = frozenset(partitions_before)
        if any(type(count) is not int or count < 1 for count in self._former):
            raise InvalidRequestError("partitions_before holds partition counts, each 1 or more")
        self._count = 0
        self._ask_at_s = float("-inf")
        self._lock = threading.Lock()

    def now(self, record_id: bytes) -> int:
        """Return the home of the id: the partition to which a new record of this id is written.

        Raises:
            KafkaEdgeError: the partition count is not known yet, and the cluster does not answer.
        """
        return partition_for(record_id, self._current_count())

    def former(self, record_id: bytes) -> list[int]:
        """Return the existing partitions, ascending, to which records of this id were written
        under former partition counts; the home is left out.

        Raises:
            KafkaEdgeError: as by ``now``.
        """
        count = self._current_count()
        # A topic that was created again may have fewer partitions than before.
        places = {partition_for(record_id, former) for former in self._former}
        return sorted(p for p in places if p < count and p != partition_for(record_id, count))

    def _current_count(self) -> int:
        if self._monotonic_s() >= self._ask_at_s:
            with self._lock:
                if self._monotonic_s() >= self._ask_at_s:
                    self._refresh()
        return self._count

    def _refresh(self) -> None:
        """Ask the cluster for the partition count, or keep the known one if it does not answer.

        Raises:
            KafkaEdgeError: no count is known, and the cluster does not answer.
        """
        try:
            count = self._ask()
        except KafkaEdgeError as exc:
            if not self._count:
                raise
            _LOGGER.warning("partition count kept at %d: %s", self._count, exc)
            count = self._count
        if self._count and count != self._count:
            self._former |= {self._count}
        self._count = count
        self._ask_at_s = self._monotonic_s() + self._refresh_s

    def _ask(self) -> int:
        try:
            found = self._producer.list_topics(self._topic, timeout=_ANSWER_S)
        except KafkaException as exc:
            raise KafkaEdgeError(f"the partitions of {self._topic} can't be asked: {exc}") from exc
        topic = found.topics.get(self._topic)
        if topic is None or topic.error is not None or not topic.partitions:
            why = topic.error.str() if topic is not None and topic.error else "it does not exist"
            raise KafkaEdgeError(
                f"delay topic {self._topic} can't be used: {why}; start the service, which "
                "creates its topics, or give the delay_topic that it serves"
            )
        return len(topic.partitions)
