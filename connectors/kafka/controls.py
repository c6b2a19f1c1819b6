"""Writes control records (cancel, fire, replace) into delay topics, and makes readers of their
outcomes.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from connectors.kafka.clients import write_confirmed
from connectors.kafka.errors import error_of
from connectors.kafka.log_ends import ASK_TIMEOUT_S
from connectors.kafka.outcomes import Outcomes, place_of
from connectors.kafka.scan import consumer_config
from delayservice.base.errors import KafkaEdgeError
from delayservice.contract.entry import NewRecord, RecordPlace

# Longest wait for the broker's confirmation of a record, in s; the client then drops it.
CONFIRM_S: Final = 15.0


class Written(NamedTuple):
    """Confirmation of the broker; on a delay topic, the timestamp is the time of the append."""

    place: RecordPlace
    timestamp_ms: int


class ControlClient:
    """Client that writes control records and makes readers of their outcomes, for any thread."""

    def __init__(
        self,
        producer: Mapping[str, str],
        consumer: Mapping[str, str],
        admin: AdminClient,
        outcomes: str,
    ) -> None:
        self._producer = producer
        self._consumer_config = consumer_config(consumer, "control-desk")
        self._admin = admin
        self._outcomes = outcomes
        self._stopping = threading.Event()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        # Written control records take effect all the same.
        self._stopping.set()

    def partitions(self, topic: str) -> int:
        # 0: the topic can't be described, for example because it does not exist.
        try:
            found = self._admin.list_topics(topic, timeout=ASK_TIMEOUT_S).topics.get(topic)
        except KafkaException as exc:
            raise KafkaEdgeError(f"the partitions of {topic} can't be asked: {exc}") from exc
        return 0 if found is None or found.error is not None else len(found.partitions)

    def write(self, records: Sequence[NewRecord]) -> list[Written]:
        """Write records, and wait up to 20 s for the broker's confirmation. Partition -1: chosen by
        the key. ``KafkaEdgeError``: the broker refuses one; or it does not answer, so it is unknown
        whether they were written.
        """
        try:
            written = write_confirmed(
                self._producer, [record._asdict() for record in records], CONFIRM_S
            )
        except KafkaException as exc:
            where = ", ".join(sorted({f"{one.topic}:{one.partition}" for one in records}))
            error = error_of(exc)
            if error.code() == KafkaError._MSG_TIMED_OUT:  # noqa: SLF001 (its public name)
                raise KafkaEdgeError(
                    f"{where} was not confirmed within {CONFIRM_S:g} s; it may be written all the "
                    "same: look at the record again before you repeat it"
                ) from exc
            raise KafkaEdgeError(f"{where} can't be written: {error.str()}") from exc
        return [Written(place_of(message), message.timestamp()[1]) for message in written]

    def listen(self) -> Outcomes:
        """Return a reader of outcomes that are written from now on; call it before ``write``."""
        return Outcomes(self._consumer_config, self._outcomes, self._stopping)
