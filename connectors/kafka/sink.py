"""Outputs to Kafka: one transactional producer for all slices of a worker, its *writer*.

``exactly_once``: outputs and checkpoints in one transaction. ``at_least_once``: target outputs by
an idempotent producer without transactions, flushed; then copies, outcomes, dead letters and the
checkpoints in a transaction, so that only target records can ever be doubled.

A commit ends in one of three ways: committed; aborted for certain
(``TransactionAbortedError``, or ``RefusedError`` when the broker named records); fenced or unknown
(``OwnershipLostError``): the writer is discarded without an abort, for a delayed EndTxn could hit
a later transaction (KAFKA-17754), and never used again.
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
"""After that the writer is given up, and the next claimant aborts it in half a second. It takes
long when a partition of the transaction before takes no marker: nothing can begin until it does."""
FLUSH_STEP_S: Final = 0.1
UNACKNOWLEDGED_S: Final = 3.0
"""A transaction is aborted when nothing more is acknowledged for so long: what is left would hold
up everything else of this worker. A busy broker that goes on acknowledging is waited for."""
SLOW_COMMIT_S: Final = 10.0
"""A commit slower than this may have been retried inside the client: the producer is given up."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Stall:
    """Time for which a flush has made no progress.

    Attributes:
        left: records without an answer, at the least so far.
        since_s: when that was first so, monotonic.
    """

    left: int
    since_s: float

    def seconds(self, left: int, now_s: float, throttled_until_s: float) -> float:
        """Take how many records are left now; a wait that a quota asked for does not count."""
        if left < self.left:
            self.left, self.since_s = left, now_s
        return now_s - max(self.since_s, throttled_until_s)


class KafkaSink(Writer):
    """The outputs of one worker. ``open`` and ``commit`` may run on another thread than the rest,
    but never at the same time.
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
        """Note why the client does not take a record; whether it takes others."""
        error = error_of(exc)
        if self._broke_off(error):
            return False
        if not concerns_record(error):
            raise self._lost("produce", exc) from exc
        self._note_record(place, offset, topic, error, None)
        return True

    def _produce_with_care(self, producer: Producer, place: Place, output: Output) -> bool:
        """Send to a topic that refuses large batches, or that refused a record a moment ago:
        batches stay below its limit, and a suspect travels alone. False: the client takes no more.
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
        """Commit what was sent, and the service's own records; see the port."""
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
        """Wait until everything is at the broker, or a failure is known.

        In steps, for once a record of a transaction fails the client sends no other, and to wait
        for those would take the whole time-out.
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
        """A transaction that includes a topic which was deleted meanwhile, or which no broker
        serves, is retried by the client for as long as it is let.
        """
        try:
            gone = self._targets.unserved({(topic, -1) for topic in self._sent_to})
        except KafkaEdgeError as exc:  # asked again with the next step, until there is no time left
            _log.debug("targets_not_seen", why=str(exc))
            return
        if gone:
            self._fail("; ".join(detail for _, detail in gone.values()))

    def _flush_step(self, producer: Producer) -> int:
        """Return how many records are left; raises when the producer was fenced."""
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
        """The transaction can't be committed: abort it and say whether records are to blame."""
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
        """Put the targets aside that have not acknowledged in time, and return the slices whose
        checkpoints have not been. When nothing was acknowledged it is the cluster that is slow.

        A partition that takes no record takes no abort marker either, and until it does the broker
        lets its writer begin nothing: the writer is given up.
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
        """Abort only for errors of records and targets. After any other, the client would abort,
        take a higher epoch by itself, and undo a fence.

        Raises:
            OwnershipLostError: there is such an error, in a delivery report or of the transaction.
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
        """Return whether the open transaction is intact. When the coordinator refuses it, no
        delivery report says so, but the client takes no other record. One that it does take is
        aborted with the rest.
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
        """Abort, and return the partitions whose records had no answer yet: reports of purged
        records name them.
        """
        producer, stuck = self._fenced_producer, self._purged
        self.abort()
        with suppress(KafkaException):  # the next call says what is wrong
            flush(producer, 0)
        return stuck | self._purged

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
        for topic in self._sent_to:
            self._targets.forget(topic)  # asked again, found forbidden, and parked
        return KafkaEdgeError(
            f"the service may not write to one of the topics of a transaction: {error.str()}"
        )
