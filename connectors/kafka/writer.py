"""A transactional producer, and the delivery reports of what it has sent."""

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
    """The transactional producer of one worker, and the one without transactions beside it."""

    def __init__(
        self, options: SinkOptions, targets: TargetTopics, clients: Clients = KAFKA
    ) -> None:
        self._options = options
        self._targets = targets
        self._clients = clients
        self._monotonic_s = clients.monotonic_s
        self._producer: Producer | None = None
        self._headers: list[tuple[str, bytes]] = []
        """Of the service's own records: whose transaction they are part of."""
        self._direct: Producer | None = None
        self._open = False
        self._sent_to: set[str] = set()
        self._failed: list[KafkaError] = []
        self._refusals: dict[tuple[Place, int], tuple[str, str]] = {}
        self._suspects: set[str] = set()
        """Topics that refused a record, the broker did not say which: their records are sent one
        by one until a commit succeeds."""
        self._purged: set[Target] = set()
        self._throttled_until_s = 0.0
        self._slices: set[int] = set()
        """Slices whose checkpoints the commit carries."""
        self._limits = RecordLimits(targets, compresses=compresses(options.client))
        self._refused: set[tuple[Place, int, str]] = set()
        """Records that a topic refused, whatever was made of them since."""

    def open(self) -> str:
        """Make a writer; see the port.

        ``init_transactions`` before any connection stands waits for a timer of the client's, 50 ms
        and often 500; afterwards it takes 10 ms (``bench failover``).
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
        """A quota makes the broker answer later: its partitions are not to blame for that."""
        until_s = self._monotonic_s() + event.throttle_time
        self._throttled_until_s = max(self._throttled_until_s, until_s)

    def discard(self) -> None:
        """Give the producers up; nothing more of theirs is sent."""
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
        already: ``commit`` finds out which.
        """
        if error.code() != KafkaError._STATE:  # noqa: SLF001  # librdkafka's spelling
            return False
        self._failed.append(error)
        return True

    def _note_failure(self, error: KafkaError | None, message: Message) -> None:
        """A delivery report of a failure; it does not say which record (no opaque, no headers)."""
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
        """The fate of one known record."""
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
        """Note that a topic refuses a record for good. A topic that refuses what was made of it as
        well takes nothing for a while: else the same would be sent and aborted for ever.
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
    """Return whether an error is about one record or its target."""
    return error.code() in REFUSALS or error.code() in LOST_TARGETS
