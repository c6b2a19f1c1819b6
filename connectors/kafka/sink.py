"""Writes outputs to Kafka: one transactional producer for all slices of a worker, its *writer*.

``exactly_once``: outputs and checkpoints are written in one transaction. ``at_least_once``: target
outputs are written by an idempotent producer without transactions, and flushed; then requeued
records, outcomes, dead letters and checkpoints in a transaction. So only target records can be
doubled.

A commit ends in one of three ways:

- committed
- aborted for certain: ``TransactionAbortedError``, or ``RefusedError`` when the broker named
  records
- fenced or unknown: ``OwnershipLostError``. The writer is discarded without an abort, for a delayed
  EndTxn could hit a later transaction (KAFKA-17754), and never used again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from connectors.kafka.clients import flush, produce_patiently
from connectors.kafka.errors import (
    ABORTABLE,
    FENCED,
    error_of,
)
from connectors.kafka.sink_options import UNKNOWN_AFTER_MS
from connectors.kafka.writer import Writer, concerns_record
from delayservice.base import faults
from delayservice.base.errors import (
    KafkaEdgeError,
    OwnershipLostError,
    RefusedError,
    TransactionAbortedError,
)
from delayservice.contract.codes import TOO_LARGE
from delayservice.engine.claims import encode_key
from delayservice.engine.outcome import DELIVERED, Output, Target
from delayservice.engine.ports import Control, Place

COMMIT_TIMEOUT_S: Final = 30.0
ABORT_TIMEOUT_S: Final = 2.0
"""Longest wait for an abort, in s; then the writer is given up, and the next claimant aborts its
transaction in half a second. An abort takes long when a partition of the transaction before takes
no marker, which blocks every new transaction."""
FLUSH_STEP_S: Final = 0.1
UNACKNOWLEDGED_S: Final = 3.0
"""Time without an acknowledgement after which a transaction is aborted, in s: the records left
would hold up this worker. A busy broker that goes on acknowledging is waited for."""
SLOW_COMMIT_S: Final = 10.0
"""Duration above which a commit may have been retried, in s: the producer is given up."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Stall:
    """Time for which a flush has made no progress.

    Attributes:
        left: smallest number of unacknowledged records so far.
        since_s: time at which that number was reached, monotonic seconds.
    """

    left: int
    since_s: float

    def seconds(self, left: int, now_s: float, throttled_until_s: float) -> float:
        """Note the records left; return the seconds without progress, waits for quotas excluded."""
        if left < self.left:
            self.left, self.since_s = left, now_s
        return now_s - max(self.since_s, throttled_until_s)


class KafkaSink(Writer):
    """Writer of one worker's outputs. ``open`` and ``commit`` may run on another thread than the
    rest, but never at the same time.
    """

    def send(self, place: Place, outputs: Sequence[Output]) -> None:
        """Queue outputs for the open transaction; see the port."""
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
                raise self._lost("begin_transaction", exc) from exc
            self._open = True

    def _produce(self, producer: Producer, place: Place, outputs: Sequence[Output]) -> None:
        produce: Callable[..., None] = producer.produce
        for offset, topic in self._limits.outgrown(outputs).items():
            reason = (TOO_LARGE, f"larger than max.message.bytes of {topic}")
            self._refuse(place, offset, topic, reason)
        if self._refusals:
            return
        suspects, limits = self._suspects, self._limits
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
        """Note why the client does not take a record; return whether it takes others."""
        error = error_of(exc)
        if self._broke_off(error):
            return False
        if not concerns_record(error):
            raise self._lost("produce", exc) from exc
        self._note_record(place, offset, topic, error, None)
        return True

    def _produce_with_care(self, producer: Producer, place: Place, output: Output) -> bool:
        """Send to a topic that refuses large batches, or that just refused a record: batches stay
        below the limit, and records of a suspect topic are sent one by one. Return whether the
        client takes more.
        """
        _, topic, partition, key, value, headers, _, offset = output
        if self._limits.must_flush(output):
            self._await_sent(producer)
        self._limits.sent(output)
        note = partial(self._note_record, place, offset, topic)
        try:
            produce_patiently(
                producer, topic, value, key, partition, headers=headers, on_delivery=note
            )
        except KafkaException as exc:
            return self._takes_on(place, offset, topic, exc)
        if topic in self._suspects:
            self._await_sent(producer)
        return not self._failed

    def _await_sent(self, producer: Producer) -> None:
        self._limits.flushed()
        deadline_s = self._monotonic_s() + UNACKNOWLEDGED_S
        while self._flush_step(producer) and self._monotonic_s() < deadline_s and not self._failed:
            pass

    def commit(self, controls: Sequence[Control]) -> float:
        """Commit the outputs that were sent and these controls; see the port."""
        self._begin()
        producer = self._fenced_producer
        if self._direct is not None:
            self._flush(self._direct)
        if self._failed or self._refusals:
            self._fail("records were refused by the client")
        self._slices = {control.slice_no for control in controls if not control.writer}
        for control in controls:
            try:
                self._produce_control(producer, control)
            except KafkaException as exc:
                if not self._broke_off(error_of(exc)):
                    raise self._lost("produce", exc) from exc
        self._flush(producer)
        acknowledged_s = self._monotonic_s()
        if self._sent_to:
            faults.point("flushed")
        faults.point("before_commit")
        started_s = self._monotonic_s()
        self._commit_transaction(producer)
        self._suspects.clear()
        self._refused.clear()
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
        """Wait until every record is at the broker, or a failure is known.

        It waits in steps: after a failed record of a transaction the client sends no others, and
        waiting for those would take the whole time-out.
        """
        started_s = self._monotonic_s()
        stall = Stall(len(producer), started_s)
        while left := self._flush_step(producer):
            waited_s = self._monotonic_s() - started_s
            stalled_s = stall.seconds(left, self._monotonic_s(), self._throttled_until_s)
            if waited_s > UNKNOWN_AFTER_MS / 1000:
                self._fail_if_target_is_gone()
            if self._failed or stalled_s > UNACKNOWLEDGED_S or waited_s > COMMIT_TIMEOUT_S:
                self._fail(f"{left} records were not acknowledged")
        if self._failed:
            self._fail("records were refused by the broker")

    def _fail_if_target_is_gone(self) -> None:
        """Abort if a topic of the transaction was deleted or has no leader: the client would retry
        it until its time-out.
        """
        try:
            gone = self._targets.unserved({(topic, -1) for topic in self._sent_to})
        except KafkaEdgeError as exc:  # asked again with the next step, until there is no time left
            _log.debug("targets_not_seen", why=str(exc))
            return
        if gone:
            self._fail("; ".join(detail for _, detail in gone.values()))

    def _flush_step(self, producer: Producer) -> int:
        """Flush for 0.1 s; return the number of records left. Raises if the producer is fenced."""
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
            is_known = error.code() in ABORTABLE or bool(self._failed)
            if error.fatal() or not error.txn_requires_abort() or not is_known:
                raise self._lost("commit_transaction", exc) from exc
            self._fail(str(error))

    def _fail(self, why: str) -> None:
        """Abort and raise ``RefusedError`` with refused records, or ``TransactionAbortedError``."""
        self._flush_step(self._fenced_producer)  # reports that are on their way
        self._give_up_unless_abortable()
        refusals, sent_to = dict(self._refusals), set(self._sent_to)
        is_known = bool(self._failed)
        self._limits.learn()
        waiting = self._abort_and_see()
        if refusals:
            raise RefusedError(refusals)
        raise TransactionAbortedError(
            why, frozenset() if is_known else self._put_aside(waiting, sent_to)
        )

    def _put_aside(self, waiting: set[Target], sent_to: set[str]) -> frozenset[int]:
        """Stop sending to targets that have not acknowledged in time; return the slices whose
        checkpoints were not acknowledged. If nothing was acknowledged, the cluster is slow, and no
        target is put aside.

        A partition that takes no record takes no abort marker either, which blocks every new
        transaction of its writer: the writer is given up.
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
        """Raise unless the errors concern records and targets. After any other error, the client
        would abort, take a higher epoch by itself, and undo a fence.

        Raises:
            OwnershipLostError: a delivery report or the transaction has such an error.
        """
        for error in self._failed:
            if error.code() in FENCED:
                raise self._lost("delivery", KafkaException(error))
        if self._takes_more():
            return
        try:  # in this state it commits nothing, but says what broke the transaction
            self._fenced_producer.commit_transaction(ABORT_TIMEOUT_S)
        except KafkaException as exc:
            error = error_of(exc)
            if error.fatal() or error.code() not in ABORTABLE:
                raise self._lost("transaction", exc) from exc
        else:
            raise OwnershipLostError("a transaction that had failed was committed after all")

    def _takes_more(self) -> bool:
        """Return whether the open transaction is intact. When the coordinator refuses it, the only
        sign is that the client takes no other record. The record that this sends is aborted with
        the rest.
        """
        try:
            self._fenced_producer.produce(self._options.claims_topic, b"", b"", 0)
        except BufferError:  # its queue is full: it would have refused to queue anything before
            return True
        except KafkaException as exc:
            if not self._broke_off(error_of(exc)):
                raise self._lost("produce", exc) from exc
            return False
        return True

    def _abort_and_see(self) -> set[Target]:
        """Abort; return the partitions whose records were not acknowledged, as reports of purged
        records name them.
        """
        producer, stuck = self._fenced_producer, self._purged
        self.abort()
        with suppress(KafkaException):  # the next call says what is wrong
            flush(producer, 0)
        return stuck | self._purged

    def abort(self) -> None:
        """Abort the open transaction and drop its records; see the port."""
        if not self._open:
            return
        producer = self._fenced_producer
        try:
            producer.abort_transaction(ABORT_TIMEOUT_S)
        except KafkaException as exc:
            raise self._lost("abort_transaction", exc) from exc
        self._forget()

    def _forbidden(self, error: KafkaError) -> KafkaEdgeError:
        """Return the error for a topic that could not be added to the transaction; the client does
        not say which. No record is visible, but the broker may have no transaction to abort.
        """
        for topic in self._sent_to:
            self._targets.forget(topic)  # asked again, found forbidden, and parked
        return KafkaEdgeError(
            f"the service may not write to one of the topics of a transaction: {error.str()}"
        )
