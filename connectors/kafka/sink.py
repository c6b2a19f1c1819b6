"""Writes outputs to Kafka: one transactional producer for all slices of a worker, its *writer*.

``exactly_once``: outputs and checkpoints are written in one transaction. ``at_least_once``: records
delivered when due (``DELIVERED``) are written by a second, idempotent producer without
transactions, and flushed; then fired and requeued records, outcomes, dead letters and checkpoints
in a transaction. So only records of the first kind can be delivered twice.

A writer ends (``WriterEndedError``)

- with its first abort, whatever the reason was
- after a commit, if the connection to the coordinator has failed since the writer was opened: a
  delayed EndTxn could end its next transaction (KAFKA-17754)

or is lost (``OwnershipLostError``): it is fenced, or a commit has an unknown outcome. Then nothing
is aborted. In each case it is never used again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from connectors.kafka.clients import (
    KAFKA,
    QUEUE_FULL,
    RECONNECT_MS_MAX,
    Clients,
    CoordinatorLog,
    connect,
    connection_failure,
    flush,
    produce_patiently,
)
from connectors.kafka.delivery_reports import DeliveryReports
from connectors.kafka.errors import FENCED, MEANINGS, Meaning, error_of
from connectors.kafka.target_limits import BATCH_BYTES, RECORD_BYTES_MAX
from connectors.kafka.targets import TargetTopics
from delayservice.base import faults
from delayservice.base.errors import KafkaEdgeError, OwnershipLostError, WriterEndedError
from delayservice.engine.claims import WRITER, encode_key
from delayservice.engine.outcome import DELIVERED, Output, Target
from delayservice.engine.ports import Control, Place

INIT_TIMEOUT_S: Final = 20.0
CONNECT_TIMEOUT_S: Final = 5.0

# Time for which the client retries a target topic that has disappeared, in ms.
UNKNOWN_AFTER_MS: Final = 1_500


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """Names and client options that a worker's sink, take-over and reader of checkpoints share."""

    # Prefix of the transactional ids: the service's prefix, the node and the worker.
    name_prefix: str
    checkpoint_topic: str
    checkpoint_partitions: int
    claims_topic: str
    exactly_once: bool = True
    partitioner: str = "murmur2_random"
    # librdkafka options from the settings, bootstrap servers included.
    producer: Mapping[str, str]
    consumer: Mapping[str, str]

    def checkpoint_partition(self, slice_no: int) -> int:
        return slice_no % self.checkpoint_partitions

    def transactional(self, writer: str) -> dict[str, str | int | float | bool]:
        return {
            "linger.ms": 5,
            **self._common(),
            "transactional.id": writer,
            "transaction.timeout.ms": 45_000,
        }

    def idempotent(self) -> dict[str, str | int | float | bool]:
        return {"linger.ms": 1, **self._common(), "enable.idempotence": True}

    def _common(self) -> dict[str, str | int | float | bool]:
        return {
            "batch.num.messages": 10_000,
            "batch.size": BATCH_BYTES,
            "message.max.bytes": RECORD_BYTES_MAX,  # the topic decides, not the client
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 65_536,  # large values must not pile up here
            "message.timeout.ms": 40_000,
            "reconnect.backoff.max.ms": RECONNECT_MS_MAX,
            "topic.metadata.propagation.max.ms": UNKNOWN_AFTER_MS,
            "delivery.report.only.error": True,
            **self.producer,
            "partitioner": self.partitioner,
            "acks": "all",
        }


def initialise(producer: Producer, writer: str, options: WriterOptions) -> None:
    connect(producer, options.checkpoint_topic, CONNECT_TIMEOUT_S)
    try:
        producer.init_transactions(INIT_TIMEOUT_S)
    except KafkaException as exc:
        error = error_of(exc)
        if error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            raise KafkaEdgeError(
                f"give the service Write on transactional ids that begin with "
                f"{options.name_prefix}: {error.str()}"
            ) from exc
        raise KafkaEdgeError(f"the writer {writer} could not be opened: {error}") from exc


def lost(what: str, exc: KafkaException) -> OwnershipLostError:
    error = error_of(exc)
    return OwnershipLostError(
        f"fenced at {what}: another node has taken over a slice ({error})"
        if error.code() in FENCED
        else f"{what} has no certain result ({error}); the checkpoints are read again"
    )


COMMIT_TIMEOUT_S: Final = 30.0
# Longest wait for an abort, in s; then the next owner's fence aborts the transaction, in a tenth of
# a second. An abort takes long when records are on their way to a broker that does not answer, or a
# partition of the previous transaction takes no marker, which blocks every new transaction.
ABORT_TIMEOUT_S: Final = 0.3
FLUSH_STEP_S: Final = 0.1
# Time of a flush after which the topics of its transaction are looked up, in s.
LOOKED_UP_S: Final = 0.5
# Time without an acknowledgement, or without room in the client's queue, after which a transaction
# is aborted, in s, as it holds up the worker. While a busy broker goes on acknowledging, the worker
# waits.
UNACKNOWLEDGED_S: Final = 3.0

_log = structlog.get_logger(__name__)


class KafkaSink:
    """Sink of one worker's outputs."""

    def __init__(
        self, options: WriterOptions, targets: TargetTopics, clients: Clients = KAFKA
    ) -> None:
        self._options = options
        self._targets = targets
        self._clients = clients
        self._monotonic_s = clients.monotonic_s
        self._reports = DeliveryReports(targets, clients.monotonic_s)
        self._producer: Producer | None = None
        # Producer of target records for ``at_least_once``; None: ``exactly_once``.
        self._direct: Producer | None = None
        # Log of ``_producer``.
        self._log = CoordinatorLog()
        # Headers of the service's own records, which name the writer of the transaction.
        self._headers: list[tuple[str, bytes]] = []
        self._open = False
        # Time for which the loop has waited in the open transaction, in s: for room in the client's
        # queue, and for records that are sent one by one.
        self._awaited_s = 0.0
        # Targets of the outputs in the open transaction.
        self._sent_to: set[Target] = set()
        # Topics of all outputs of the writer.
        self._used: set[str] = set()
        # Slices whose checkpoints are part of the present commit.
        self._slices: set[int] = set()

    def open(self) -> str:
        self.discard()
        self._used.clear()
        self._targets.remade.clear()
        writer = self._new_name()
        self._log = CoordinatorLog()
        producer = self._make({**self._options.transactional(writer), **self._log.options})
        initialise(producer, writer, self._options)
        self._producer = producer
        self._headers = [(WRITER, writer.encode())]
        if not self._options.exactly_once:
            self._direct = self._make(self._options.idempotent())
        return writer

    def _new_name(self) -> str:
        return f"{self._options.name_prefix}-{uuid.uuid4().hex[:16]}"

    def _make(self, config: Mapping[str, Any]) -> Producer:
        reports = self._reports
        callbacks = {"on_delivery": reports.note_report, "throttle_cb": reports.note_throttle}
        return self._clients.producer({**config, **callbacks})

    def discard(self) -> None:
        for producer in (self._producer, self._direct):
            if producer is not None:
                producer.purge(blocking=False)
        self._producer = self._direct = None
        self._forget()

    def _forget(self) -> None:
        self._open = False
        self._awaited_s = 0.0
        self._sent_to.clear()
        self._slices = set()
        self._reports.forget()
        self._targets.limits.end_transaction()

    @property
    def _topics(self) -> set[str]:
        return {topic for topic, _ in self._sent_to}

    @property
    def _fenced_producer(self) -> Producer:
        if self._producer is None:
            raise WriterEndedError("there is no writer: none was opened, or it has ended")
        return self._producer

    def check(self) -> None:
        # A delayed EndTxn could end the next transaction; a topic that was created again has
        # leaders that the writer does not know.
        if self._producer is None or self._open:
            return
        failure = connection_failure(self._producer, self._log)
        why = f"the connection to the coordinator has failed: {failure}" if failure else ""
        why = why or self._remade(self._used)
        if why:
            self.discard()
            raise WriterEndedError(why)

    def _remade(self, topics: Collection[str]) -> str:
        remade = sorted(self._targets.remade.intersection(topics))
        return f"topic {remade[0]} was deleted and created again" if remade else ""

    def send(self, place: Place, outputs: Sequence[Output]) -> None:
        if not outputs:
            return
        self._begin()
        targets = {(output[1], output[2]) for output in outputs}
        self._sent_to |= targets
        self._used |= {topic for topic, _ in targets}
        producer = self._fenced_producer
        if self._direct is not None:
            self._produce(self._direct, place, [one for one in outputs if one[0] == DELIVERED])
            outputs = [one for one in outputs if one[0] != DELIVERED]
        self._produce(producer, place, outputs)

    def _begin(self) -> None:
        if not self._open:
            self.check()
            try:
                self._fenced_producer.begin_transaction()
            except KafkaException as exc:
                raise lost("begin_transaction", exc) from exc
            self._open = True

    def _produce(self, producer: Producer, place: Place, outputs: Sequence[Output]) -> None:
        produce: Callable[..., None] = producer.produce
        small = self._targets.small
        for output in outputs:
            _, topic, partition, key, value, headers, _, offset = output
            try:
                if topic in small:
                    self._produce_with_care(producer, place, output)
                else:
                    try:
                        produce(topic, value, key, partition, headers=headers)
                    except BufferError:  # seldom: let the queue drain
                        self._await_room(producer, topic, value, key, partition, headers=headers)
            except KafkaException as exc:
                if not self._takes_on(place, offset, topic, exc):
                    return
            if small and self._reports.failed:
                return
        producer.poll(0)

    @contextmanager
    def _waiting(self) -> Iterator[float]:
        """Count what runs within as a wait of the loop; give the time left for all waits of the
        transaction, in s.
        """
        started_s = self._monotonic_s()
        try:
            yield UNACKNOWLEDGED_S - self._awaited_s
        finally:
            self._awaited_s += self._monotonic_s() - started_s

    def _await_room(self, producer: Producer, *record: object, **options: object) -> None:
        try:
            with self._waiting() as left_s:
                produce_patiently(
                    producer, *record, timeout_s=left_s, monotonic_s=self._monotonic_s, **options
                )
        except KafkaException as exc:
            error = error_of(exc)
            if error.code() == QUEUE_FULL:
                self._fail(error.str(), is_stalled=True)
            raise

    def _takes_on(self, place: Place, offset: int, topic: str, exc: KafkaException) -> bool:
        error = error_of(exc)
        if self._reports.broke_off(error):
            return False
        if MEANINGS.get(error.code(), Meaning.WRITER) is Meaning.WRITER:
            raise lost("produce", exc) from exc
        self._reports.note(topic, error, (place, offset))
        return True

    def _produce_with_care(self, producer: Producer, place: Place, output: Output) -> None:
        _, topic, partition, key, value, headers, _, offset = output
        limits, own = self._targets.limits, {}
        if limits.begins_batch(output):
            self._await_sent(producer)
        if topic in limits.suspects:
            own["on_delivery"] = partial(self._reports.note_report, alone=(place, offset))
        self._await_room(producer, topic, value, key, partition, headers=headers, **own)

    def _await_sent(self, producer: Producer) -> None:
        with self._waiting() as left_s:
            until_s = self._monotonic_s() + left_s
            while (left := self._flush_step(producer)) and not self._reports.failed:
                if self._monotonic_s() > until_s:
                    self._fail(f"{left} records were not acknowledged", is_stalled=True)

    def commit(self, controls: Sequence[Control]) -> float:
        self._begin()
        producer = self._fenced_producer
        if self._direct is not None:
            self._flush(self._direct)
        if self._reports.failed or self._reports.refusals:
            self._fail("records were refused by the client")
        self._slices = {control.slice_no for control in controls if not control.writer}
        for control in controls:
            try:
                self._produce_control(producer, control)
            except KafkaException as exc:
                if not self._reports.broke_off(error_of(exc)):
                    raise lost("produce", exc) from exc
        self._flush(producer)
        acknowledged_s = self._monotonic_s()
        if self._sent_to:
            faults.point("flushed")
        faults.point("before_commit")
        self._commit_transaction(producer)
        self._targets.limits.committed(self._topics)
        self._forget()
        return acknowledged_s

    def _produce_control(self, producer: Producer, control: Control) -> None:
        options, number = self._options, control.slice_no
        if control.writer:
            key = encode_key(number, control.writer)
            topic, partition = options.claims_topic, 0
        else:
            key = b"%d" % number
            topic, partition = options.checkpoint_topic, options.checkpoint_partition(number)
        self._await_room(producer, topic, control.value, key, partition, headers=self._headers)

    def _flush(self, producer: Producer) -> None:
        # In steps: after a failed record the client sends no others of the transaction.
        began_s = moved_s = self._monotonic_s()
        least = len(producer)
        while left := self._flush_step(producer):
            now_s = self._monotonic_s()
            if left < least:
                least, moved_s = left, now_s
            if now_s - began_s > LOOKED_UP_S:
                self._fail_if_target_is_gone(now_s - began_s)
            # A quota delays answers, for which no partition is to blame.
            stalled_s = now_s - max(moved_s, self._reports.throttled_until_s)
            is_over = stalled_s > UNACKNOWLEDGED_S or now_s - began_s > COMMIT_TIMEOUT_S
            if self._reports.failed or is_over:
                self._fail(f"{left} records were not acknowledged", is_stalled=True)
        if self._reports.failed:
            self._fail("records were refused by the broker")

    def _fail_if_target_is_gone(self, waited_s: float) -> None:
        # For example a topic that was deleted and perhaps created again: the client would retry
        # until its time-out.
        try:
            gone = self._targets.unserved(self._sent_to)
        except KafkaEdgeError as exc:  # asked again with the next step, until there is no time left
            _log.debug("targets_not_seen", why=str(exc))
            return
        if why := self._remade(self._topics):
            self._fail(why)
        if gone and waited_s > UNKNOWN_AFTER_MS / 1000:
            self._fail("; ".join(detail for _, detail in gone.values()))

    def _flush_step(self, producer: Producer) -> int:
        try:
            return flush(producer, FLUSH_STEP_S)
        except KafkaException as exc:
            raise lost("flush", exc) from exc

    def _commit_transaction(self, producer: Producer) -> None:
        try:
            producer.commit_transaction(COMMIT_TIMEOUT_S)
        except KafkaException as exc:
            error = error_of(exc)
            meaning = MEANINGS.get(error.code(), Meaning.WRITER)
            is_known = meaning is not Meaning.WRITER or bool(self._reports.failed)
            if error.fatal() or not error.txn_requires_abort() or not is_known:
                raise lost("commit_transaction", exc) from exc
            if meaning is Meaning.LOST:  # the coordinator does not say which topic it is
                for topic in self._topics:
                    self._targets.forget(topic)
            self._fail(str(error))

    def _fail(self, why: str, *, is_stalled: bool = False) -> NoReturn:
        """Abort, and raise ``WriterEndedError`` with the refused records; if the writer turns out
        to be fenced, raise ``OwnershipLostError`` without an abort. ``is_stalled``: partitions that
        have not acknowledged are to blame, unless a record was refused.
        """
        self._flush_step(self._fenced_producer)  # reports that are on their way
        failed, refusals = list(self._reports.failed), dict(self._reports.refusals)
        for error in failed:
            if MEANINGS.get(error.code()) is Meaning.WRITER:
                raise lost("delivery", KafkaException(error))
        sent_to, slices = self._topics, set(self._slices)
        waiting = self._abort()
        stuck: frozenset[int] = frozenset()
        if is_stalled and not failed and not refusals:
            stuck = self._put_aside(waiting, sent_to, slices)
        if failed:
            why = f"{why}, first: {failed[0]}"
        raise WriterEndedError(why, refusals, stuck)

    def _put_aside(
        self, waiting: set[Target], sent_to: set[str], slices: set[int]
    ) -> frozenset[int]:
        """Give up those of ``waiting``, the targets that have not acknowledged; return the
        ``slices`` whose checkpoints were not acknowledged. If nothing was acknowledged, the cluster
        is slow: give up nothing. ``sent_to``: topics of the transaction's outputs.
        """
        options = self._options
        places = {options.checkpoint_partition(number) for number in slices}
        used = len(sent_to) + len(places)
        slow = {partition for topic, partition in waiting if topic == options.checkpoint_topic}
        targets = {target for target in waiting if target[0] in sent_to}
        if len({topic for topic, _ in targets}) + len(slow & places) >= used:
            return frozenset()
        self._targets.give_up(targets, "does not acknowledge records in time")
        return frozenset(n for n in slices if options.checkpoint_partition(n) in slow)

    def abort(self) -> None:
        # If the abort fails, the fence of the next owner ends the transaction.
        self._abort()

    def _abort(self) -> set[Target]:
        if self._open and self._producer is not None:
            try:
                self._producer.abort_transaction(ABORT_TIMEOUT_S)
            except KafkaException as exc:
                _log.info("abort_not_confirmed", why=str(exc))
        for producer in (self._producer, self._direct):
            if producer is not None:
                producer.purge(blocking=False)
                with suppress(KafkaException):  # it is fenced: never mind, it is not used again
                    flush(producer, 0)  # reports of purged records name their targets
        waiting = set(self._reports.purged)
        self.discard()
        return waiting
