"""Collects the failures in the delivery reports of a worker's writer, and what they mean for its
open transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Message, Producer, ThrottleEvent

from connectors.kafka.errors import LOST_TARGETS, PURGED, REFUSALS, error_of
from connectors.kafka.record_limits import RecordLimits
from connectors.kafka.sink_options import lost
from connectors.kafka.targets import TargetTopics
from delayservice.engine.outcome import Target
from delayservice.engine.ports import Place


@dataclass(slots=True)
class Stall:
    """Time for which a flush has made no progress: no further record was acknowledged.

    Attributes:
        left: smallest number of unacknowledged records so far.
        since_s: time at which that number was reached, monotonic seconds.
    """

    left: int
    since_s: float

    def seconds(self, left: int, now_s: float, throttled_until_s: float) -> float:
        """Note that ``left`` records are unacknowledged now; return the seconds without progress.
        Time until ``throttled_until_s`` does not count. Times are monotonic seconds.
        """
        if left < self.left:
            self.left, self.since_s = left, now_s
        return now_s - max(self.since_s, throttled_until_s)


class DeliveryReports:
    """Collector of the failed records of the open transaction.

    Args:
        targets: target topics; a topic that fails is forgotten or given up there.
        limits: batch sizes; a topic that refuses a large batch is noted there.
        monotonic_s: the clock, in seconds.

    Attributes:
        failed: errors of records, without those that were purged by an abort.
        refusals: code and detail of each record that is refused for good, by its shard and source
            offset.
        suspects: topics that refused a record which the broker did not name: their records are sent
            one by one until a commit succeeds.
        purged: topics and partitions with records that were dropped before they were acknowledged.
        throttled_until_s: time until which a quota delays answers, monotonic seconds.
    """

    def __init__(
        self, targets: TargetTopics, limits: RecordLimits, monotonic_s: Callable[[], float]
    ) -> None:
        self._targets = targets
        self._limits = limits
        self._monotonic_s = monotonic_s
        self.failed: list[KafkaError] = []
        self.refusals: dict[tuple[Place, int], tuple[str, str]] = {}
        self.suspects: set[str] = set()
        self.purged: set[Target] = set()
        self._refused: set[tuple[Place, int, str]] = set()
        """Shard, source offset and topic of records that the topic refused, kept until the next
        commit."""
        self.throttled_until_s = 0.0

    def forget(self) -> None:
        """Forget the failures of the open transaction, as it has ended."""
        self.failed.clear()
        self.refusals.clear()
        self.purged = set()

    def committed(self) -> None:
        """Trust every topic again, as all records of a transaction were committed."""
        self.suspects.clear()
        self._refused.clear()

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

    def takes_more(self, producer: Producer, topic: str) -> bool:
        """Return whether the client takes another record; false: a record or the coordinator has
        failed the open transaction. As the check adds a record to ``topic``, the caller has to
        abort the transaction in either case.

        Raises:
            OwnershipLostError: the client refuses the record for another reason.
        """
        try:
            producer.produce(topic, b"", b"", 0)
        except BufferError:  # its queue is full: it would have refused to queue anything before
            return True
        except KafkaException as exc:
            if not self.broke_off(error_of(exc)):
                raise lost("produce", exc) from exc
            return False
        return True

    def note_failure(self, error: KafkaError | None, message: Message) -> None:
        """Note the delivery report of a failed record. The report names topic and partition, but
        not the record.
        """
        topic, partition = message.topic(), message.partition()
        if error is None or topic is None:
            return
        if error.code() in PURGED:
            self.purged.add((topic, -1 if partition is None else partition))
            return
        self.failed.append(error)
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            self._limits.note_refused(topic)
        if error.code() in REFUSALS:
            self.suspects.add(topic)
        if error.code() in REFUSALS or error.code() in LOST_TARGETS:
            self._targets.forget(topic)  # asked again, and judged by what it takes now

    def note_record(
        self, place: Place, offset: int, topic: str, error: KafkaError | None, _message: object
    ) -> None:
        """Note the delivery report of a record sent to ``topic`` for the source offset ``offset``
        of the shard ``place``; ``error`` None: the record was acknowledged.
        """
        if error is None or error.code() in PURGED:
            return
        self.failed.append(error)
        if error.code() in LOST_TARGETS:
            self._targets.forget(topic)  # asked again, found unfit, and parked
        elif error.code() in REFUSALS and topic in self.suspects:
            self.refuse(place, offset, topic, (REFUSALS[error.code()], error.str()))
        elif error.code() in REFUSALS:  # perhaps it was in a batch with the one to blame
            self.suspects.add(topic)

    def refuse(self, place: Place, offset: int, topic: str, reason: tuple[str, str]) -> None:
        """Note that ``topic`` refuses the record for a source offset for good; ``reason``: code and
        detail. If this is the second time since the last commit, the topic is given up for a while:
        otherwise records would be sent and aborted endlessly.
        """
        self.refusals[place, offset] = reason
        if (place, offset, topic) in self._refused:
            self._targets.give_up({(topic, -1)})
        self._refused.add((place, offset, topic))
