"""Outputs to Kafka: one fenced transactional producer per slice.

``exactly_once``: outputs and checkpoint in one transaction. ``at_least_once``: target outputs by an
idempotent producer without transactions, flushed; then copies, outcomes, dead letters and the
checkpoint in a fenced transaction, so that only target records can ever be doubled.

What a commit can end in, and nothing else (design section 6): committed; aborted for certain
(``TransactionAbortedError``, or ``RefusedError`` when the broker named records); fenced or unknown
(``OwnershipLostError``): the producer is discarded without an abort, for a delayed EndTxn could hit
a later transaction (KAFKA-17754).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from connectors.kafka.clients import flush, producer_client
from connectors.kafka.errors import FENCED, LOST_TARGETS, PURGED, REFUSALS, error_of
from connectors.kafka.topics import TargetTopics
from delayservice import faults
from delayservice.core.codes import TOO_LARGE
from delayservice.core.outcome import DELIVERED, Output, Target
from delayservice.errors import (
    KafkaEdgeError,
    OwnershipLostError,
    RefusedError,
    TransactionAbortedError,
)

COMMIT_TIMEOUT_S: Final = 30.0
ABORT_TIMEOUT_S: Final = 5.0
"""After that a new producer aborts it: that costs half a second."""
FLUSH_STEP_S: Final = 0.1
INIT_TIMEOUT_S: Final = 20.0
QUICK_INIT_S: Final = 0.05
QUICK_INITS: Final = 6
CONNECT_TIMEOUT_S: Final = 5.0
UNKNOWN_AFTER_MS: Final = 1_500
"""How long the client goes on hoping for a target that has disappeared."""
SLOW_COMMIT_S: Final = 10.0
"""A commit slower than this may have been retried inside the client: the producer is given up."""

_BATCH_BYTES: Final = 61
"""The header of a record batch, version 2."""
_NO_LIMIT: Final = 2**31
_COMPRESSION: Final = ("compression.type", "compression.codec")

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What the sink of a slice needs to know."""

    slice_no: int
    transactional_id: str
    checkpoint_topic: str
    exactly_once: bool
    partitioner: str
    client: Mapping[str, str]
    """librdkafka options: the user's, bootstrap servers included."""

    def transactional(self) -> dict[str, str | int | float | bool]:
        """Options of the fenced producer."""
        return {
            **self._common(),
            "transactional.id": self.transactional_id,
            "transaction.timeout.ms": 45_000,
        }

    def idempotent(self) -> dict[str, str | int | float | bool]:
        """Options of the producer for target records at least once."""
        return {**self._common(), "enable.idempotence": True}

    def _common(self) -> dict[str, str | int | float | bool]:
        return {
            "linger.ms": 5,
            "batch.num.messages": 10_000,
            "batch.size": 1_000_000,
            "message.max.bytes": 16 * 1024 * 1024,  # the topic decides, not the client
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 32_768,  # a slice: large values must not pile up here
            "message.timeout.ms": 40_000,
            "topic.metadata.propagation.max.ms": UNKNOWN_AFTER_MS,
            "delivery.report.only.error": True,
            **self.client,
            "partitioner": self.partitioner,
            "acks": "all",
        }


class KafkaSink:
    """The outputs of one slice. Single-threaded, as the loop that owns it."""

    def __init__(self, options: SinkOptions, targets: TargetTopics) -> None:
        self._options = options
        self._targets = targets
        self._producer: Producer | None = None
        self._prepared: Producer | None = None
        self._direct: Producer | None = None
        self._open = False
        self._sent_to: set[Target] = set()
        self._failed: list[KafkaError] = []
        self._refusals: dict[tuple[str, int], tuple[str, str]] = {}
        self._diagnosing = False
        self._limits: dict[str, int] = {}
        self._too_large: set[str] = set()
        compression = (options.client.get(name, "none") for name in _COMPRESSION)
        self._compresses = any(codec != "none" for codec in compression)

    # --- life ----------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Connect, so that ``init`` is quick.

        ``init_transactions`` before any connection stands waits for a timer of the client's, 50 ms
        and often 500; afterwards it takes 10 ms (``bench failover``).
        """
        if self._prepared is None:
            self._prepared = self._make(self._options.transactional())
            with suppress(KafkaException):  # whoever needs the cluster will hear of it
                self._prepared.list_topics(self._options.checkpoint_topic, CONNECT_TIMEOUT_S)

    def init(self) -> None:
        """Fence whoever wrote for this slice before; see the port."""
        for timeout_s in (*[QUICK_INIT_S] * QUICK_INITS, INIT_TIMEOUT_S):
            self.discard()
            self.prepare()
            self._producer, self._prepared = self._prepared, None
            if self._has_fenced(timeout_s):
                break
        if not self._options.exactly_once:
            self._direct = self._make(self._options.idempotent())

    def _has_fenced(self, timeout_s: float) -> bool:
        """Whether the producer is the only one now; False if there was no answer in time.

        While the old owner's transaction is being ended Kafka says "not yet", and the client asks
        again half a second later. A new client asks at once.
        """
        try:
            self._fenced_producer.init_transactions(timeout_s)
        except KafkaException as exc:
            error = error_of(exc)
            if error.retriable() and timeout_s < INIT_TIMEOUT_S:
                return False
            self.discard()
            if error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                raise KafkaEdgeError(
                    f"give the service Write on the transactional id "
                    f"{self._options.transactional_id}: {error.str()}"
                ) from exc
            raise OwnershipLostError(
                f"slice {self._options.slice_no}: init_transactions failed: {error}"
            ) from exc
        return True

    def _make(self, config: dict[str, str | int | float | bool]) -> Producer:
        if self._diagnosing:  # one record a batch, and a report for each: who is it?
            config |= {"batch.num.messages": 1, "delivery.report.only.error": False, "linger.ms": 0}
        if self._limits:
            config["batch.size"] = min(int(config["batch.size"]), *self._limits.values())
        return producer_client({**config, "on_delivery": self._note_failure})

    def discard(self) -> None:
        """Give the producers up; nothing more of theirs is sent."""
        for producer in (self._producer, self._direct):
            if producer is not None:
                producer.purge(blocking=False)
        self._producer = self._direct = None
        self._forget()

    def _forget(self) -> None:
        self._open = False
        self._sent_to.clear()
        self._failed.clear()
        self._refusals.clear()

    @property
    def _fenced_producer(self) -> Producer:
        if self._producer is None:
            raise OwnershipLostError(
                f"slice {self._options.slice_no} has no producer: none was made, or it was given "
                "up after a slow commit"
            )
        return self._producer

    # --- send ----------------------------------------------------------------------------------

    def blocked(self, targets: Collection[Target]) -> dict[Target, tuple[str, str]]:
        """Those of ``targets`` that don't exist now."""
        return self._targets.missing(targets)

    def still_blocked(
        self, blocked: Mapping[Target, tuple[str, str]]
    ) -> dict[Target, tuple[str, str]]:
        """Those of ``blocked`` that still can't be written to, as of a moment ago."""
        return self._targets.still_missing(blocked.keys())

    def send(self, shard: str, outputs: Sequence[Output], targets: Collection[Target]) -> None:
        """Queue outputs for the open transaction; see the port."""
        self._begin()
        self._sent_to.update(targets)
        if self._direct is None:
            self._produce(self._fenced_producer, shard, outputs)
            return
        direct = [output for output in outputs if output[0] == DELIVERED]
        self._produce(self._direct, shard, direct)
        if len(direct) < len(outputs):
            rest = [output for output in outputs if output[0] != DELIVERED]
            self._produce(self._fenced_producer, shard, rest)

    def _begin(self) -> None:
        if not self._open:
            try:
                self._fenced_producer.begin_transaction()
            except KafkaException as exc:
                raise self._lost("begin_transaction", exc) from exc
            self._open = True

    def _produce(self, producer: Producer, shard: str, outputs: Sequence[Output]) -> None:
        produce: Callable[..., None] = producer.produce
        note: dict[str, object] = {}
        for offset in self._outgrown(outputs):
            self._refusals[shard, offset] = (TOO_LARGE, "larger than its topic's max.message.bytes")
        if self._refusals:
            return
        for _, topic, partition, key, value, headers, _, offset in outputs:
            if self._diagnosing:
                note = {"on_delivery": partial(self._note_record, shard, offset, topic)}
            while True:
                try:
                    produce(topic, value, key, partition, headers=headers, **note)
                except BufferError:
                    producer.poll(0.01)  # the client's queue is full: let it drain
                    continue
                except KafkaException as exc:
                    error = error_of(exc)
                    if self._broke_off(error):
                        return
                    if not _concerns_record(error):
                        raise self._lost("produce", exc) from exc
                    self._note_record(shard, offset, topic, error, None)
                break
        producer.poll(0)

    def _broke_off(self, error: KafkaError) -> bool:
        """Whether the client takes no more because a record of this transaction has failed already:
        ``commit`` finds out which.
        """
        if error.code() != KafkaError._STATE:  # noqa: SLF001  # librdkafka's spelling
            return False
        self._failed.append(error)
        return True

    def _note_failure(self, error: KafkaError | None, message: Message) -> None:
        """A delivery report of a failure; it does not say which record (no opaque, no headers)."""
        if error is not None and error.code() not in PURGED:
            self._failed.append(error)
            topic = message.topic()
            if error.code() == KafkaError.MSG_SIZE_TOO_LARGE and topic is not None:
                self._too_large.add(topic)
            elif error.code() in LOST_TARGETS and topic is not None:
                self._targets.forget(topic)  # asked again, found unfit, and parked

    def _note_record(
        self, shard: str, offset: int, topic: str, error: KafkaError | None, _message: object
    ) -> None:
        """The fate of one known record."""
        if error is None or error.code() in PURGED:
            return
        self._failed.append(error)
        if error.code() in LOST_TARGETS:
            self._targets.forget(topic)  # asked again, found unfit, and parked
        elif error.code() in REFUSALS:
            self._refusals[shard, offset] = (REFUSALS[error.code()], error.str())

    # --- commit --------------------------------------------------------------------------------

    def commit(self, checkpoint: bytes) -> None:
        """Commit what was sent, and the checkpoint; see the port for what it raises."""
        self._begin()
        producer = self._fenced_producer
        if self._direct is not None:
            self._flush(self._direct)
        if self._failed or self._refusals:
            self._fail("records were refused by the client")
        options = self._options
        try:
            producer.produce(
                options.checkpoint_topic,
                checkpoint,
                b"%d" % options.slice_no,
                partition=options.slice_no,
            )
        except KafkaException as exc:
            if not self._broke_off(error_of(exc)):
                raise self._lost("produce", exc) from exc
        self._flush(producer)
        if self._sent_to:
            faults.point("flushed")
        faults.point("before_commit")
        started_s = time.monotonic()
        self._commit_transaction(producer)
        self._open = False
        self._sent_to.clear()
        if self._diagnosing:
            self._stop_diagnosing()
        elif time.monotonic() - started_s > SLOW_COMMIT_S:
            self.discard()  # the next turn takes over anew, if this node is the owner still

    def _flush(self, producer: Producer) -> None:
        """Everything is at the broker, or a failure is known.

        In steps, for once a record of a transaction fails the client sends no other, and to wait
        for those would take the whole time-out.
        """
        started_s = time.monotonic()
        while left := self._flush_step(producer):
            waited_s = time.monotonic() - started_s
            if waited_s > UNKNOWN_AFTER_MS / 1000:
                self._fail_if_target_is_gone()
            if self._failed or waited_s > COMMIT_TIMEOUT_S:
                self._fail(f"{left} records were not acknowledged")
        if self._failed:
            self._fail("records were refused by the broker")

    def _fail_if_target_is_gone(self) -> None:
        """A transaction that includes a topic which was deleted meanwhile, or which no broker
        serves, is retried by the client for as long as it is let.
        """
        try:
            gone = self._targets.unserved(self._sent_to)
        except KafkaEdgeError as exc:  # asked again with the next step, until there is no time left
            _log.debug("targets_not_seen", why=str(exc))
            return
        if gone:
            self._fail("; ".join(detail for _, detail in gone.values()))

    def _flush_step(self, producer: Producer) -> int:
        """How many records are left; raises when the producer was fenced."""
        try:
            return flush(producer, FLUSH_STEP_S)
        except KafkaException as exc:
            raise self._lost("flush", exc) from exc

    def _commit_transaction(self, producer: Producer) -> None:
        try:
            producer.commit_transaction(COMMIT_TIMEOUT_S)
        except KafkaException as exc:
            error = error_of(exc)
            if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise self._forbidden(error) from exc
            if error.fatal() or error.code() in FENCED or not error.txn_requires_abort():
                raise self._lost("commit_transaction", exc) from exc
            self._fail(str(error))

    def _fail(self, why: str) -> None:
        """The transaction can't be committed: abort it and say whether records are to blame."""
        self._flush_step(self._fenced_producer)  # reports that are on their way
        if self._refusals:
            self._abort_refused()
        if any(error.code() in REFUSALS for error in self._failed) and not self._diagnosing:
            self._diagnosing = True
            self._bound_batches()
            reasons = sorted({str(error) for error in self._failed})
            self._replace_producer()
            raise TransactionAbortedError(
                f"records were refused ({'; '.join(reasons)}); sending one by one to find which"
            )
        self.abort()
        raise TransactionAbortedError(why)

    def _bound_batches(self) -> None:
        """The client never splits a batch that is larger than its topic allows, so that records
        which are small enough one by one would be refused together again and again.
        """
        for topic in self._too_large:
            self._learn_limit(topic)
        self._too_large.clear()

    def _learn_limit(self, topic: str) -> None:
        limit = self._targets.record_bytes_max(topic)
        if limit is not None:
            self._limits[topic] = limit

    def _outgrown(self, outputs: Sequence[Output]) -> set[int]:
        """Offsets of outputs that are too large for certain: all at once, for the client stops at
        the first that the broker refuses. A limit may have been raised meanwhile, so it is asked
        again before anything is refused by it.
        """
        limits = self._limits
        if not limits or self._compresses:
            return set()
        suspects = [o for o in outputs if _bytes_min(o) > limits.get(o[1], _NO_LIMIT)]
        for topic in {output[1] for output in suspects}:
            self._learn_limit(topic)
        return {output[7] for output in suspects if _bytes_min(output) > limits[output[1]]}

    def _abort_refused(self) -> None:
        refusals = dict(self._refusals)
        if self._diagnosing:
            self._stop_diagnosing()
        else:
            self.abort()
        raise RefusedError(refusals)

    def _stop_diagnosing(self) -> None:
        self._diagnosing = False
        self._replace_producer()

    def _replace_producer(self) -> None:
        """A new producer of the same transactional id: aborts what the old one left open."""
        if self._open:
            self.abort()
        self.init()

    def abort(self) -> None:
        """Drop what was sent; see the port."""
        if not self._open:
            return
        producer = self._fenced_producer
        try:
            producer.abort_transaction(ABORT_TIMEOUT_S)
        except KafkaException as exc:
            raise self._lost("abort_transaction", exc) from exc
        self._forget()

    def _forbidden(self, error: KafkaError) -> KafkaEdgeError:
        """A topic could not be added to the transaction, and the client does not say which. Nothing
        of it is visible, but the broker may know of no transaction that could be aborted.
        """
        for topic, _ in self._sent_to:
            self._targets.forget(topic)  # asked again, found forbidden, and parked
        return KafkaEdgeError(
            f"slice {self._options.slice_no}: the service may not write to one of the topics of a "
            f"transaction: {error.str()}"
        )

    def _lost(self, what: str, exc: KafkaException) -> OwnershipLostError:
        error = error_of(exc)
        fenced = error.code() in FENCED
        return OwnershipLostError(
            f"slice {self._options.slice_no}: "
            + (
                f"fenced at {what}: another owner has taken over ({error})"
                if fenced
                else f"{what} has no certain result ({error}); the checkpoint is read again"
            )
        )


def _bytes_min(output: Output) -> int:
    """What an output takes at least in a batch of its own, uncompressed."""
    _, _, _, key, value, headers, _, _ = output
    content = len(key or b"") + len(value or b"")
    return _BATCH_BYTES + content + sum(len(n) + len(v or b"") + 2 for n, v in headers)


def _concerns_record(error: KafkaError) -> bool:
    """Whether an error is about one record or its target, not about the connection or the role."""
    return error.code() in REFUSALS or error.code() in LOST_TARGETS
