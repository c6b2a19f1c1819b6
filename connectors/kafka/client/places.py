"""Partition of an id in a delay topic."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import Producer

from connectors.kafka.clients import partitions_of
from delayservice.base.errors import KafkaEdgeError
from delayservice.contract.partitioner import partition_for

REFRESH_S: Final = 60.0
"""Time for which a partition count is used before the cluster is asked again, in seconds."""

_ANSWER_S: Final = 15.0

_LOGGER: Final = logging.getLogger(__name__)


class Places:
    """Finder of the partitions of ids in one delay topic, from its partition count. Thread-safe.

    A thread of its own asks the cluster, one question at a time, so that callers wait for the first
    answer only.
    """

    def __init__(
        self,
        producer: Producer,
        topic: str,
        refresh_s: float = REFRESH_S,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._refresh_s = refresh_s
        self._monotonic_s = monotonic_s
        self._count = 0
        self.missing = ""
        """Why the topic can't be used, by the last answer; empty: it can, or none has come."""
        self._failure = ""
        """Why there was no answer to the last question; empty: there was one, or none was asked."""
        self._ask_at_s = float("-inf")
        self._is_asking = False
        self._answered = threading.Condition()

    def check(self) -> None:
        """Raise ``KafkaEdgeError`` if the last answer was that the delay topic does not exist; else
        return at once. Ask again in the background when it is time.
        """
        missing = self.missing  # read first: what is asked now may be answered at any moment
        if self._monotonic_s() >= self._ask_at_s:
            self._ask()
        if missing:
            raise KafkaEdgeError(missing)

    def now(self, record_id: bytes) -> int:
        """Return the partition to which a record of this id is written: its home, unless partitions
        were added.

        Raises:
            KafkaEdgeError: the partition count is not known yet, and the cluster does not answer;
                or there is no such topic.
        """
        return partition_for(record_id, self._current_count())

    def _current_count(self) -> int:
        if not self._count:
            self._ask()
            with self._answered:
                # Longer than the question may take, so that its error is the one that is told.
                self._answered.wait_for(lambda: not self._is_asking, _ANSWER_S + 1)
        self.check()
        if not self._count:
            raise KafkaEdgeError(self._failure or self._unasked("no answer in time"))
        return self._count

    def _ask(self) -> None:
        with self._answered:
            if self._is_asking:
                return
            self._is_asking = True
        try:
            threading.Thread(target=self._refresh, name="partition-count", daemon=True).start()
        except RuntimeError as exc:  # the process may have no more threads
            self._fail(exc)

    def _refresh(self) -> None:
        try:
            self._answer(partitions_of(self._producer, self._topic, _ANSWER_S))
        except KafkaEdgeError as exc:
            missing = (
                f"{exc}. Start the service, which creates its topics, or give the delay topic that "
                "it serves"
            )
            self._answer(self._count, missing=missing)
        except Exception as exc:  # noqa: BLE001  # whatever it is, callers wait for an answer
            self._fail(exc)

    def _fail(self, exc: Exception) -> None:
        if self._count:  # the known one stays in use
            _LOGGER.warning("partition count kept at %d: %s", self._count, exc)
        self._answer(self._count, failure=self._unasked(exc))

    def _answer(self, count: int, missing: str = "", failure: str = "") -> None:
        with self._answered:
            self._count, self.missing, self._failure = count, missing, failure
            if count and not missing:
                self._ask_at_s = self._monotonic_s() + self._refresh_s
            self._is_asking = False
            self._answered.notify_all()

    def _unasked(self, why: object) -> str:
        return f"the partitions of {self._topic} can't be asked: {why}"
