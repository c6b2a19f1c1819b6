"""Writes outputs to Kafka: one transactional producer for all slices of a worker, its *writer*.

``exactly_once``: outputs and checkpoints are written in one transaction. ``at_least_once``: target
outputs are written by an idempotent producer without transactions, and flushed; then requeued
records, outcomes, dead letters and checkpoints in a transaction. So only target records can be
delivered twice.

A commit ends in one of three ways:

- committed
- aborted for certain: ``TransactionAbortedError``, or ``RefusedError`` with the refused records
- fenced or unknown: ``OwnershipLostError``. The writer is discarded without an abort, since a
  delayed EndTxn could hit a later transaction (KAFKA-17754), and never used again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from connectors.kafka.clients import KAFKA, Clients, flush, produce_patiently
from connectors.kafka.delivery_reports import DeliveryReports, Stall
from connectors.kafka.errors import ABORTABLE, FENCED, LOST_TARGETS, REFUSALS, error_of
from connectors.kafka.record_limits import RecordLimits
from connectors.kafka.sink_options import UNKNOWN_AFTER_MS, SinkOptions, initialise, lost
from connectors.kafka.targets import TargetTopics
from connectors.kafka.topic_terms import compresses
from delayservice.base import faults
from delayservice.base.errors import (
    KafkaEdgeError,
    OwnershipLostError,
    RefusedError,
    TransactionAbortedError,
    WriterGivenUpError,
)
from delayservice.contract.codes import TOO_LARGE
from delayservice.engine.claims import WRITER, encode_key
from delayservice.engine.outcome import DELIVERED, Output, Target
from delayservice.engine.ports import Control, Place

COMMIT_TIMEOUT_S: Final = 30.0
ABORT_TIMEOUT_S: Final = 2.0
"""Longest wait for an abort, in s; then the writer is given up, and the next owner aborts its
transaction in half a second. An abort takes long when a partition of the previous transaction takes
no abort marker, which blocks every new transaction."""
FLUSH_STEP_S: Final = 0.1
UNACKNOWLEDGED_S: Final = 3.0
"""Time without an acknowledgement after which a transaction is aborted, in s, as it holds up the
worker. While a busy broker goes on acknowledging, the worker waits."""
SLOW_COMMIT_S: Final = 10.0
"""Duration of a commit above which the client may have retried it, in s: the writer is given up."""

_log = structlog.get_logger(__name__)


class KafkaSink:
    """Sink of one worker's outputs. ``open`` and ``commit`` may run on another thread than the
    other methods, but never at the same time.

    Args:
        options: settings of the sink and of its producers.
        targets: target topics; those that fail are forgotten or given up there.
        clients: makes the producers.
    """

    def __init__(
        self, options: SinkOptions, targets: TargetTopics, clients: Clients = KAFKA
    ) -> None:
        self._options = options
        self._targets = targets
        self._clients = clients
        self._monotonic_s = clients.monotonic_s
        self._limits = RecordLimits(targets, compresses=compresses(options.client))
        self._reports = DeliveryReports(targets, self._limits, clients.monotonic_s)
        self._producer: Producer | None = None
        self._direct: Producer | None = None
        """Producer of target records for ``at_least_once``; None: ``exactly_once``."""
        self._headers: list[tuple[str, bytes]] = []
        """Headers of the service's own records, which name the writer of the transaction."""
        self._open = False
        self._sent_to: set[str] = set()
        """Topics of the outputs in the open transaction."""
        self._slices: set[int] = set()
        """Slices whose checkpoints are part of the present commit."""

    def open(self) -> str:
        """Give the present writer up, open one with a new transactional id, and return that id.

        Raises:
            KafkaEdgeError: the cluster does not answer, or refuses the id.
        """
        self.discard()
        writer = self._new_name()
        producer = self._make(self._options.transactional(writer))
        initialise(producer, writer, self._options)
        self._producer = producer
        self._headers = [(WRITER, writer.encode())]
        if not self._options.exactly_once:
            self._direct = self._make(self._options.idempotent())
        return writer

    def _new_name(self) -> str:
        return f"{self._options.name_prefix}-{uuid.uuid4().hex[:16]}"

    def _make(self, config: dict[str, str | int | float | bool]) -> Producer:
        reports = self._reports
        callbacks = {"on_delivery": reports.note_failure, "throttle_cb": reports.note_throttle}
        return self._clients.producer({**config, **callbacks})

    def discard(self) -> None:
        """Drop the producers; records that they have not sent yet are purged."""
        for producer in (self._producer, self._direct):
            if producer is not None:
                producer.purge(blocking=False)
        self._producer = self._direct = None
        self._reports.suspects.clear()
        self._forget()

    def _forget(self) -> None:
        self._open = False
        self._sent_to.clear()
        self._reports.forget()
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

    def send(self, place: Place, outputs: Sequence[Output]) -> None:
        """Queue outputs of the shard ``place`` for the open transaction; begin one if needed.

        Raises:
            OwnershipLostError: the writer is fenced, given up or not open.
        """
        self._begin()
        self._sent_to.update([output[1] for output in outputs])
        if self._direct is None:
            self._produce(self._fenced_producer, place, outputs)
            return
        direct = [output for output in outputs if output[0] == DELIVERED]
        self._produce(self._direct, place, direct)
        if len(direct) < len(outputs):
            rest = [output for output in outputs if output[0] != DELIVERED]
            self._produce(self._fenced_producer, place, rest)

    def _begin(self) -> None:
        if not self._open:
            try:
                self._fenced_producer.begin_transaction()
            except KafkaException as exc:
                raise lost("begin_transaction", exc) from exc
            self._open = True

    def _produce(self, producer: Producer, place: Place, outputs: Sequence[Output]) -> None:
        produce: Callable[..., None] = producer.produce
        for offset, topic in self._limits.outgrown(outputs).items():
            reason = (TOO_LARGE, f"larger than max.message.bytes of {topic}")
            self._reports.refuse(place, offset, topic, reason)
        if self._reports.refusals:
            return
        suspects, limits = self._reports.suspects, self._limits
        is_careful = bool(suspects or limits)
        for output in outputs:
            _, topic, partition, key, value, headers, _, offset = output
            if is_careful and (topic in suspects or topic in limits):
                if not self._produce_with_care(producer, place, output):
                    return
                continue
            try:
                try:
                    produce(topic, value, key, partition, headers=headers)
                except BufferError:  # seldom: let the queue drain
                    produce_patiently(producer, topic, value, key, partition, headers=headers)
            except KafkaException as exc:
                if not self._takes_on(place, offset, topic, exc):
                    return
        producer.poll(0)

    def _takes_on(self, place: Place, offset: int, topic: str, exc: KafkaException) -> bool:
        """Note why the client refused a record; return whether the client takes other records."""
        error = error_of(exc)
        if self._reports.broke_off(error):
            return False
        if error.code() not in REFUSALS and error.code() not in LOST_TARGETS:
            raise lost("produce", exc) from exc
        self._reports.note_record(place, offset, topic, error, None)
        return True

    def _produce_with_care(self, producer: Producer, place: Place, output: Output) -> bool:
        """Queue an output for a topic that refuses large batches, after a flush if the batch would
        be too large; if the topic has just refused a record, flush it alone. Return whether the
        client takes more.
        """
        _, topic, partition, key, value, headers, _, offset = output
        if self._limits.must_flush(output):
            self._await_sent(producer)
        self._limits.sent(output)
        note = partial(self._reports.note_record, place, offset, topic)
        try:
            produce_patiently(
                producer, topic, value, key, partition, headers=headers, on_delivery=note
            )
        except KafkaException as exc:
            return self._takes_on(place, offset, topic, exc)
        if topic in self._reports.suspects:
            self._await_sent(producer)
        return not self._reports.failed

    def _await_sent(self, producer: Producer) -> None:
        self._limits.flushed()
        deadline_s, reports = self._monotonic_s() + UNACKNOWLEDGED_S, self._reports
        while self._flush_step(producer) and self._monotonic_s() < deadline_s:
            if reports.failed:
                break

    def commit(self, controls: Sequence[Control]) -> float:
        """Commit the outputs sent since the last commit, with the checkpoints, claims and releases
        in ``controls``. Return the time at which the brokers had all records, monotonic seconds.

        Raises:
            RefusedError: brokers or client refused records for good; the transaction was aborted.
            TransactionAbortedError: the transaction was aborted for another reason.
            OwnershipLostError: the writer is fenced or given up, or the result is unknown.
            KafkaEdgeError: the service may not write to a topic; the transaction was not committed.
        """
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
        started_s = self._monotonic_s()
        self._commit_transaction(producer)
        self._reports.committed()
        self._forget()
        if self._monotonic_s() - started_s > SLOW_COMMIT_S:
            self.discard()  # the next turn claims anew, if this node is the owner still
        return acknowledged_s

    def _produce_control(self, producer: Producer, control: Control) -> None:
        options, number = self._options, control.slice_no
        if control.writer:
            key = encode_key(number, control.writer)
            topic, partition = options.claims_topic, 0
        else:
            key = b"%d" % number
            topic, partition = options.checkpoint_topic, options.checkpoint_partition(number)
        produce_patiently(producer, topic, control.value, key, partition, headers=self._headers)

    def _flush(self, producer: Producer) -> None:
        """Wait until the brokers have every record; abort and raise if one fails or takes too long.
        Wait in steps: after a failed record the client sends no others of the transaction.
        """
        started_s = self._monotonic_s()
        stall = Stall(len(producer), started_s)
        while left := self._flush_step(producer):
            waited_s = self._monotonic_s() - started_s
            stalled_s = stall.seconds(left, self._monotonic_s(), self._reports.throttled_until_s)
            if waited_s > UNKNOWN_AFTER_MS / 1000:
                self._fail_if_target_is_gone()
            if self._reports.failed or stalled_s > UNACKNOWLEDGED_S or waited_s > COMMIT_TIMEOUT_S:
                self._fail(f"{left} records were not acknowledged")
        if self._reports.failed:
            self._fail("records were refused by the broker")

    def _fail_if_target_is_gone(self) -> None:
        """Abort and raise if a topic of the transaction can't acknowledge records, such as a
        deleted one: the client would retry until its time-out.
        """
        try:
            gone = self._targets.unserved({(topic, -1) for topic in self._sent_to})
        except KafkaEdgeError as exc:  # asked again with the next step, until there is no time left
            _log.debug("targets_not_seen", why=str(exc))
            return
        if gone:
            self._fail("; ".join(detail for _, detail in gone.values()))

    def _flush_step(self, producer: Producer) -> int:
        """Flush for 0.1 s, or raise ``OwnershipLostError``; return the number of records left."""
        try:
            return flush(producer, FLUSH_STEP_S)
        except KafkaException as exc:
            raise lost("flush", exc) from exc

    def _commit_transaction(self, producer: Producer) -> None:
        try:
            producer.commit_transaction(COMMIT_TIMEOUT_S)
        except KafkaException as exc:
            error = error_of(exc)
            if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise self._forbidden(error) from exc
            is_known = error.code() in ABORTABLE or bool(self._reports.failed)
            if error.fatal() or not error.txn_requires_abort() or not is_known:
                raise lost("commit_transaction", exc) from exc
            self._fail(str(error))

    def _fail(self, why: str) -> None:
        """Abort; raise ``RefusedError`` with refused records, or ``TransactionAbortedError``."""
        self._flush_step(self._fenced_producer)  # reports that are on their way
        self._give_up_unless_abortable()
        refusals, sent_to = dict(self._reports.refusals), set(self._sent_to)
        is_known = bool(self._reports.failed)
        self._limits.learn()
        producer, waiting = self._fenced_producer, self._reports.purged
        self.abort()
        with suppress(KafkaException):  # the next call says what is wrong
            flush(producer, 0)
        # Reports of purged records name the partitions that did not acknowledge.
        waiting |= self._reports.purged
        if refusals:
            raise RefusedError(refusals)
        raise TransactionAbortedError(
            why, frozenset() if is_known else self._put_aside(waiting, sent_to)
        )

    def _put_aside(self, waiting: set[Target], sent_to: set[str]) -> frozenset[int]:
        """Give up those of ``waiting``, the targets that have not acknowledged, and the writer;
        return the slices whose checkpoints were not acknowledged. If nothing was acknowledged, the
        cluster is slow: give up nothing. ``sent_to``: topics of the transaction's outputs.

        A partition that takes no record takes no abort marker either, which blocks every new
        transaction of the writer.
        """
        options = self._options
        places = {options.checkpoint_partition(number) for number in self._slices}
        used = len(sent_to) + len(places)
        slow = {partition for topic, partition in waiting if topic == options.checkpoint_topic}
        targets = {target for target in waiting if target[0] in sent_to}
        if len({topic for topic, _ in targets}) + len(slow & places) >= used:
            return frozenset()
        self._targets.give_up(targets)
        self.discard()
        return frozenset(n for n in self._slices if options.checkpoint_partition(n) in slow)

    def _give_up_unless_abortable(self) -> None:
        """Raise ``OwnershipLostError`` if a record's error is in ``FENCED``, or the transaction's
        not in ``ABORTABLE``: an abort could then take a higher epoch, which would undo a fence.
        """
        for error in self._reports.failed:
            if error.code() in FENCED:
                raise lost("delivery", KafkaException(error))
        if self._reports.takes_more(self._fenced_producer, self._options.claims_topic):
            return
        try:  # in this state it commits nothing, but says what broke the transaction
            self._fenced_producer.commit_transaction(ABORT_TIMEOUT_S)
        except KafkaException as exc:
            error = error_of(exc)
            if error.fatal() or error.code() not in ABORTABLE:
                raise lost("transaction", exc) from exc
        else:
            raise OwnershipLostError("a transaction that had failed was committed after all")

    def abort(self) -> None:
        """Abort the open transaction, if any, and drop its records.

        Raises:
            OwnershipLostError: the writer is fenced or given up, or the result is unknown.
        """
        if not self._open:
            return
        producer = self._fenced_producer
        try:
            producer.abort_transaction(ABORT_TIMEOUT_S)
        except KafkaException as exc:
            raise lost("abort_transaction", exc) from exc
        self._forget()

    def _forbidden(self, error: KafkaError) -> KafkaEdgeError:
        """Return the error for a topic that the service may not write to. The client does not say
        which topic, so all are looked up again. The broker may have no transaction to abort.
        """
        for topic in self._sent_to:
            self._targets.forget(topic)  # asked again, found forbidden, and parked
        return KafkaEdgeError(
            f"the service may not write to one of the topics of a transaction: {error.str()}"
        )
