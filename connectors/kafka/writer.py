"""A transactional producer, and the handling of its delivery reports."""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer, ThrottleEvent

from connectors.kafka.clients import KAFKA, Clients
from connectors.kafka.errors import (
    FENCED,
    LOST_TARGETS,
    PURGED,
    REFUSALS,
    error_of,
)
from connectors.kafka.record_limits import RecordLimits
from connectors.kafka.sink_options import SinkOptions
from connectors.kafka.targets import TargetTopics
from connectors.kafka.topic_terms import compresses
from delayservice.base.errors import (
    KafkaEdgeError,
    OwnershipLostError,
    WriterGivenUpError,
)
from delayservice.engine.claims import WRITER
from delayservice.engine.outcome import Target
from delayservice.engine.ports import Place

INIT_TIMEOUT_S: Final = 20.0
CONNECT_TIMEOUT_S: Final = 5.0


class Writer:
    """The transactional producer of one worker, and its producer without transactions."""

    def __init__(
        self, options: SinkOptions, targets: TargetTopics, clients: Clients = KAFKA
    ) -> None:
        self._options = options
        self._targets = targets
        self._clients = clients
        self._monotonic_s = clients.monotonic_s
        self._producer: Producer | None = None
        self._headers: list[tuple[str, bytes]] = []
        """Headers of the service's own records, which name the writer of the transaction."""
        self._direct: Producer | None = None
        self._open = False
        self._sent_to: set[str] = set()
        self._failed: list[KafkaError] = []
        self._refusals: dict[tuple[Place, int], tuple[str, str]] = {}
        self._suspects: set[str] = set()
        """Topics that refused a record which the broker did not name: their records are sent one by
        one until a commit succeeds."""
        self._purged: set[Target] = set()
        self._throttled_until_s = 0.0
        self._slices: set[int] = set()
        """Slices whose checkpoints are part of the commit."""
        self._limits = RecordLimits(targets, compresses=compresses(options.client))
        self._refused: set[tuple[Place, int, str]] = set()
        """Records that a topic refused, kept until the next commit even if they are handled
        otherwise."""

    def open(self) -> str:
        """Open a writer with a new transactional id, and return the id; see the port.

        A connection is made first: without one, ``init_transactions`` waits for a timer of the
        client, 50 ms and often 500; with one it takes 10 ms (``bench failover``).
        """
        self.discard()
        writer = self._new_name()
        producer = self._make(self._options.transactional(writer))
        with suppress(KafkaException):  # init_transactions says what is wrong
            producer.list_topics(self._options.checkpoint_topic, CONNECT_TIMEOUT_S)
        try:
            producer.init_transactions(INIT_TIMEOUT_S)
        except KafkaException as exc:
            error = error_of(exc)
            if error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                raise KafkaEdgeError(
                    f"give the service Write on transactional ids that begin with "
                    f"{self._options.name_prefix}: {error.str()}"
                ) from exc
            raise KafkaEdgeError(f"the writer {writer} could not be opened: {error}") from exc
        self._producer = producer
        self._headers = [(WRITER, writer.encode())]
        if not self._options.exactly_once:
            self._direct = self._make(self._options.idempotent())
        return writer

    def _new_name(self) -> str:
        return f"{self._options.name_prefix}-{uuid.uuid4().hex[:16]}"

    def _make(self, config: dict[str, str | int | float | bool]) -> Producer:
        callbacks = {"on_delivery": self._note_failure, "throttle_cb": self._note_throttle}
        return self._clients.producer({**config, **callbacks})

    def _note_throttle(self, event: ThrottleEvent) -> None:
        """Note until when a quota delays answers, so that partitions are not blamed for it."""
        until_s = self._monotonic_s() + event.throttle_time
        self._throttled_until_s = max(self._throttled_until_s, until_s)

    def discard(self) -> None:
        """Drop both producers; records that they have not sent yet are purged."""
        for producer in (self._producer, self._direct):
            if producer is not None:
                producer.purge(blocking=False)
        self._producer = self._direct = None
        self._suspects.clear()
        self._forget()

    def _forget(self) -> None:
        self._open = False
        self._sent_to.clear()
        self._failed.clear()
        self._refusals.clear()
        self._purged = set()
        self._limits.flushed()
        self._targets.flushed()

    @property
    def _fenced_producer(self) -> Producer:
        if self._producer is None:
            raise WriterGivenUpError(
                "there is no writer: none was opened, or it was given up after a slow commit or "
                "because of a partition that does not acknowledge"
            )
        return self._producer

    def _broke_off(self, error: KafkaError) -> bool:
        """Return whether the client takes no more because a record of this transaction has failed
        already, and note that; ``commit`` finds out which record.
        """
        if error.code() != KafkaError._STATE:  # noqa: SLF001  # librdkafka's spelling
            return False
        self._failed.append(error)
        return True

    def _note_failure(self, error: KafkaError | None, message: Message) -> None:
        """Note a failure's delivery report, which has no opaque or headers to name the record."""
        topic, partition = message.topic(), message.partition()
        if error is None or topic is None:
            return
        if error.code() in PURGED:
            self._purged.add((topic, -1 if partition is None else partition))
            return
        self._failed.append(error)
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            self._limits.note_refused(topic)
        if error.code() in REFUSALS:
            self._suspects.add(topic)
        if error.code() in REFUSALS or error.code() in LOST_TARGETS:
            self._targets.forget(topic)  # asked again, and judged by what it takes now

    def _note_record(
        self, place: Place, offset: int, topic: str, error: KafkaError | None, _message: object
    ) -> None:
        """Note the delivery report of one known record."""
        if error is None or error.code() in PURGED:
            return
        self._failed.append(error)
        if error.code() in LOST_TARGETS:
            self._targets.forget(topic)  # asked again, found unfit, and parked
        elif error.code() in REFUSALS and topic in self._suspects:
            self._refuse(place, offset, topic, (REFUSALS[error.code()], error.str()))
        elif error.code() in REFUSALS:  # perhaps it was in a batch with the one to blame
            self._suspects.add(topic)

    def _refuse(self, place: Place, offset: int, topic: str, reason: tuple[str, str]) -> None:
        """Note that a topic refuses a record for good. If it also refuses what replaces the record,
        it is given up for a while: otherwise the same would be sent and aborted endlessly.
        """
        self._refusals[place, offset] = reason
        if (place, offset, topic) in self._refused:
            self._targets.give_up({(topic, -1)})
        self._refused.add((place, offset, topic))

    def _lost(self, what: str, exc: KafkaException) -> OwnershipLostError:
        error = error_of(exc)
        fenced = error.code() in FENCED
        return OwnershipLostError(
            f"fenced at {what}: another node has taken over a slice ({error})"
            if fenced
            else f"{what} has no certain result ({error}); the checkpoints are read again"
        )


def concerns_record(error: KafkaError) -> bool:
    """Return whether an error concerns one record or its target."""
    return error.code() in REFUSALS or error.code() in LOST_TARGETS
