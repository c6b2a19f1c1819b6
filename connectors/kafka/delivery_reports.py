"""Collects the failures in the delivery reports of a worker's writer, and what they mean for its
open transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError, Message, ThrottleEvent

from connectors.kafka.errors import PURGED, Meaning, meaning_of, refusal_code
from connectors.kafka.targets import TargetTopics
from delayservice.engine.outcome import Target
from delayservice.engine.ports import Place

# Pause for a topic that takes no records as it is set up, in s: only its owner ends that.
UNSUITED_S: Final = 60.0
# Meanings of errors for which no topic is to blame.
_NOT_OF_TOPICS: Final = frozenset({Meaning.PASSING, Meaning.WRITER})


class DeliveryReports:
    """Collector of the failed records of the open transaction."""

    def __init__(self, targets: TargetTopics, monotonic_s: Callable[[], float]) -> None:
        self._targets = targets
        self._monotonic_s = monotonic_s
        # Errors of records, without those that were purged by an abort.
        self.failed: list[KafkaError] = []
        # Code and detail of each record that is refused for good, by its shard and source offset.
        self.refusals: dict[tuple[Place, int], tuple[str, str]] = {}
        # Topics and partitions with records that were dropped before they were acknowledged.
        self.purged: set[Target] = set()
        # Topics that the open transaction's end is put down to.
        self._blamed: set[str] = set()
        # Time until which a quota delays answers, monotonic seconds.
        self.throttled_until_s = 0.0

    def forget(self) -> None:
        self.failed.clear()
        self.refusals.clear()
        self.purged = set()
        self._blamed.clear()

    def note_throttle(self, event: ThrottleEvent) -> None:
        """Note until when a quota delays answers, so that partitions are not blamed for it."""
        until_s = self._monotonic_s() + event.throttle_time
        self.throttled_until_s = max(self.throttled_until_s, until_s)

    def broke_off(self, error: KafkaError) -> bool:
        """Return whether ``error`` says that the client takes no more records, because a record of
        the open transaction has failed already; if so, note it as a failure.
        """
        if error.code() != KafkaError._STATE:  # noqa: SLF001  # librdkafka's spelling
            return False
        self.failed.append(error)
        return True

    def note_report(
        self, error: KafkaError | None, message: Message, *, alone: tuple[Place, int] | None = None
    ) -> None:
        """Note a delivery report, which names topic and partition, but not the record. ``alone``:
        shard and source offset of a record that was no part of a batch.
        """
        topic, partition = message.topic(), message.partition()
        if error is None or topic is None:
            return
        if error.code() in PURGED:
            self.purged.add((topic, -1 if partition is None else partition))
        else:
            self.note(topic, error, alone)

    def note(self, topic: str, error: KafkaError, alone: tuple[Place, int] | None) -> None:
        self.failed.append(error)
        meaning = meaning_of(error)
        if meaning is Meaning.REFUSED:
            self._targets.suspect(topic, is_found=alone is not None)
            if alone is not None:
                self.refusals[alone] = refusal_code(error), error.str()
        # Once for all records of the transaction.
        if topic in self._blamed or meaning in _NOT_OF_TOPICS:
            return
        self._blamed.add(topic)
        if meaning is Meaning.UNSUITED:
            self._targets.give_up({(topic, -1)}, f"refuses records: {error.str()}", UNSUITED_S)
        else:
            self._targets.contradicted(topic)
