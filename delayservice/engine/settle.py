"""Builds the output that settles one record, with its one outcome. Pure.

The shard decides *when* a record is settled, this module decides *how*. A record *has to wait* if
no output of it can be written now; the shard tries again later.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from delayservice.contract.codec import Meta, Payload, next_attempt, turn_of, with_turn
from delayservice.contract.codes import (
    CRON_INVALID,
    SLOT_FULL,
    TARGET_ASKED,
    TARGET_DENIED,
    TARGET_LATER,
    TARGET_PAUSED,
    TARGET_REFUSED,
    TARGET_UNKNOWN,
    TOO_LARGE,
    RecordRefusedError,
)
from delayservice.contract.names import DELAY_FIRED_BY
from delayservice.contract.provenance import Provenance, asked_again, is_large
from delayservice.contract.recurrence import (
    Recurrence,
    at_occurrence,
    first_ms,
    following,
    left_after,
    recurrence_of,
    recurs,
)
from delayservice.contract.requeue import CONTINUES
from delayservice.engine import outcome
from delayservice.engine.flow import Flow
from delayservice.engine.outcome import Output
from delayservice.engine.ports import WritableTargets
from delayservice.engine.requeuer import Requeuer, was_tried
from delayservice.engine.routes import Routes
from delayservice.engine.undelivered import BY_KEY, UndeliveredOutputs
from delayservice.engine.verdicts import Verdicts

_SERVICE_TOPIC_MS: Final = 2_000
"""First wait of a record whose dead letter or outcomes-topic record can't be written, ms."""
_SENT: Final = (outcome.DELIVERED, outcome.FIRED)
_CALENDAR_COST: Final = 20
"""Outputs of other records that take as long as a search of the calendar and what follows it."""


class Settler:
    """Builder of the outputs that settle one shard's records.

    Attributes:
        requeuer: builder of those that requeue a record.
        undelivered: builder of dead letters and records of the outcomes topic.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        routes: Routes,
        verdicts: Verdicts,
        targets: WritableTargets,
        flow: Flow | None = None,
    ) -> None:
        """Prepare to settle records of ``partition`` of the delay topic ``topic``. ``verdicts``:
        the broker's refusals of its records; ``targets``: facts about targets; ``flow``: rates
        and caps of the slice, None: no limits.
        """
        self.topic = topic
        self.partition = partition
        self.routes = routes
        self.verdicts = verdicts
        self.targets = targets
        self.provenance = provenance = Provenance(topic, partition)
        self.undelivered = UndeliveredOutputs(
            provenance, f"{topic}:{partition}", routes, verdicts, self.targets
        )
        self.requeuer = Requeuer((topic, partition), provenance, routes, self.targets)
        self._flow = flow if flow is not None and flow.limits else None
        self._allowlist = routes.allowlist(topic)
        self._good = self._allowlist.good
        self._searches_left = 1

    @property
    def has_limits(self) -> bool:
        """Return whether rates or caps (largest numbers per second) are set, which may put a due
        record off.
        """
        return self._flow is not None

    def begin(self, limit: int) -> None:
        """Begin a walk over records with about ``limit`` outputs at most. It settles fewer cron
        schedules, so that other shards do not wait for the calendar; at least one.
        """
        self._searches_left = max(limit // _CALENDAR_COST, 1)

    def denial(self, target: str) -> tuple[str, str] | None:
        """Return why settings deny ``target``, as code and detail; None: it is allowed."""
        if target in self._good:
            return None
        detail = self._allowlist.denial(target)
        return None if detail is None else (TARGET_DENIED, detail)

    def settle(
        self, offset: int, key_ms: int, payload: Payload, now_ms: int, base: int
    ) -> Output | None:
        """Return the output that settles the pending record at source offset ``offset``, whose key
        time ``key_ms`` has passed.

        A record that is not due yet at ``now_ms``, epoch ms, is rolled, unless the broker refused
        that before, or settings deny its target. ``base`` is the first offset at which a record of
        the same id cancels the record if it is requeued now (rule 12 of the design). None: the
        record has to wait, because

        - it is not due, and no roll is due either, after the clock stepped back;
        - the topic of its output is being looked up;
        - it has to be requeued, and there is no topic for that, or it can't be written to;
        - the broker refused it, and its dead letter can't be written;
        - it is a cron schedule, and this walk has settled its share of these.
        """
        if payload[6] is not None and not self._may_search(payload[6]):
            return None
        output = self._settled(offset, key_ms, payload, now_ms, base)
        return output if output is None or self._can_follow(output, payload) else None

    def _may_search(self, meta: Meta) -> bool:
        """Return whether the record with this ``meta`` may be settled in this walk, and count it if
        it needs the calendar.
        """
        recurrence = recurrence_of(meta)
        if recurrence is None or not recurrence.cron:
            return True
        self._searches_left -= 1
        return self._searches_left >= 0

    def _can_follow(self, output: Output, payload: Payload) -> bool:
        """Return False if the delay topic can't be written to, and the output is a requeued record
        or is followed by a schedule's next occurrence; else True: it can be committed.
        """
        meta = payload[6]
        is_followed = output[0] in _SENT and meta is not None and recurs(meta)
        return self.requeuer.takes() if is_followed or output[0] in outcome.COPIES else True

    def _settled(
        self, offset: int, key_ms: int, payload: Payload, now_ms: int, base: int
    ) -> Output | None:
        due_ms = payload[5]
        verdicts = self.verdicts
        if due_ms > now_ms and key_ms >= due_ms:
            return None
        refusal = verdicts.refusal(offset)
        if refusal is not None:  # of the record, or of the copy by which it was rolled
            return self.undelivered.dead_letter_of(offset, payload, *refusal)
        if due_ms > now_ms and not was_tried(payload):
            denied = self.denial(payload[0])
            letter = None
            if denied is not None:
                letter = self.undelivered.dead_letter_of(offset, payload, *denied)
            return letter or self.requeuer.roll(offset, payload, now_ms, base)
        output = self._settle_now(offset, payload, now_ms, base)
        if output is None or output[0] != outcome.DELIVERED:
            return output
        if self._flow is not None:
            limited = self._limit(self._flow, offset, key_ms, payload, now_ms, base)
            if limited is not None:
                return limited
        if due_ms > now_ms:
            output = (outcome.FIRED, *output[1:])
        elif key_ms > due_ms:
            output = (*output[:6], -key_ms, offset)
        return output

    def _settle_now(self, offset: int, payload: Payload, now_ms: int, base: int) -> Output | None:
        """Return the output that delivers a record; another one if its target is denied or can't be
        written to, or if it is expired or a new cron schedule; None: it has to wait.
        """
        target, partition, key, value, headers, due_ms, meta = payload
        if target not in self._good:
            denied = self.denial(target)
            if denied is not None:
                return self._end_with_letter(denied, offset, payload, now_ms, base)
        if meta is not None:
            if meta[3] is not None and now_ms > meta[3]:
                told = self.undelivered.outcome(
                    outcome.EXPIRED, offset, meta[0], meta[1], due_ms, None
                )
                outcomes = self.routes.outcomes
                return told or self._put_off(outcomes, offset, payload, now_ms, base)
            recurrence = recurrence_of(meta)
            if recurrence is not None and not recurrence.number:
                return self._arm(offset, payload, recurrence, now_ms, base)
            if recurrence is not None and self._lacks_letter(offset, payload, now_ms):
                return self._put_off(self.routes.dead_letter, offset, payload, now_ms, base)
        sent = headers + self.provenance.headers(offset, due_ms, meta)
        if (target, partition) not in self.targets.fit or is_large(value, headers):
            reason = self.targets.obstacle((target, partition))
            reason = reason or self.targets.refusal(target, key, value, sent)
            if reason is not None:
                return self._settle_blocked(reason, offset, payload, now_ms, base)
        return (outcome.DELIVERED, target, partition, key, value, sent, due_ms, offset)

    def _put_off(
        self, topic: str, offset: int, payload: Payload, now_ms: int, base: int
    ) -> Output | None:
        """Return the output that parks a record, because the dead-letter or outcomes topic
        ``topic`` can't take its outcome; None: it has to wait.
        """
        found = self.targets.obstacle((topic, BY_KEY))
        if self.requeuer.topic is None or (found is not None and found[0] == TARGET_ASKED):
            return None
        again = (*payload[:6], next_attempt(payload[6]))
        at_ms = self.requeuer.later_ms(offset, payload, now_ms, _SERVICE_TOPIC_MS)
        return self.requeuer.requeue(outcome.PARKED, offset, again, at_ms, base)

    def _lacks_letter(self, offset: int, payload: Payload, now_ms: int) -> bool:
        """Return True if a schedule's next occurrence can't be computed, so that it has to end with
        a dead letter, and the dead-letter topic can't be written to now; else False.
        """
        if self.undelivered.takes(self.routes.dead_letter):
            return False
        source = self.provenance.source(offset, payload[6])
        try:
            following(payload, source, now_ms, self.routes.cron_time)
        except RecordRefusedError:
            return True
        return False

    def fire(self, offset: int, payload: Payload, now_ms: int, by: int) -> Output | None:
        """Return the output that settles a pending record before it is due, because the record at
        source offset ``by`` fires it: its delivery, or another output if that is not possible now.
        None: it has to wait, as in ``settle``.
        """
        refusal = self.verdicts.refusal(offset)
        if refusal is not None:
            return self.undelivered.dead_letter_of(offset, payload, *refusal)
        output = self._settle_now(offset, payload, now_ms, by + 1)
        if output is not None and not self._can_follow(output, payload):
            return None
        if output is None or output[0] != outcome.DELIVERED:
            return output
        _, target, partition, key, value, headers, due_ms, _ = output
        sent = [*headers, (DELAY_FIRED_BY, b"%d" % by)]
        return (outcome.FIRED, target, partition, key, value, sent, due_ms, offset)

    def following(
        self, output: Output, offset: int, payload: Payload, now_ms: int, base: int
    ) -> Output | None:
        """Return the output that appends a schedule's next occurrence, to accompany ``output``,
        which delivers the pending one; None: no occurrence follows, or ``output`` does not deliver.
        If the next occurrence can't be computed, return the dead letter of the rest of the
        schedule. ``base``: first offset at which a record of the same id cancels the occurrence.
        """
        if output[0] not in _SENT:
            return None
        source = self.provenance.source(offset, payload[6])
        try:
            again = following(payload, source, now_ms, self.routes.cron_time)
        except RecordRefusedError as exc:
            return self._dead_letter_rest(offset, payload, exc.code, exc.detail)
        if again is None:
            return None
        at_ms = self.requeuer.at_ms(offset, again, now_ms)
        return self.requeuer.requeue(outcome.RECURRED, offset, again, at_ms, base, CONTINUES)

    def _arm(
        self, offset: int, payload: Payload, recurrence: Recurrence, now_ms: int, base: int
    ) -> Output | None:
        """Return the output that requeues a new cron schedule until its first occurrence, or the
        schedule's dead letter if it has no occurrence; None: it has to wait.
        """
        try:
            first = self._first(offset, payload, recurrence)
        except RecordRefusedError as exc:
            reason = (exc.code, exc.detail)
            return self._end_with_letter(reason, offset, payload, now_ms, base)
        return self.requeuer.roll(offset, first, now_ms, base)

    def _first(self, offset: int, payload: Payload, recurrence: Recurrence) -> Payload:
        """Return the payload of a cron schedule's first occurrence; raise ``RecordRefusedError`` if
        there is none.
        """
        source = self.provenance.source(offset, payload[6])
        due_ms = first_ms(recurrence, payload[5], self.routes.cron_time)
        first = at_occurrence(payload, replace(recurrence, number=1), source, due_ms)
        if first is None:
            raise RecordRefusedError(
                CRON_INVALID, f"{recurrence.cron!r} has no occurrence before its end"
            )
        return first

    def pending_occurrence(self, offset: int, payload: Payload) -> Payload:
        """Return the payload that a fire delivers: the record's own, or the first occurrence of a
        new cron schedule. A schedule without an occurrence is returned unchanged, and
        dead-lettered when it is settled.
        """
        recurrence = recurrence_of(payload[6])
        if recurrence is None or recurrence.number:
            return payload
        with suppress(RecordRefusedError):
            return self._first(offset, payload, recurrence)
        return payload

    def _settle_blocked(
        self, reason: tuple[str, str], offset: int, payload: Payload, now_ms: int, base: int
    ) -> Output | None:
        """Return the output that requeues a record whose target can't take it, for ``reason``
        (code, detail), or its dead letter after the last attempt. None: it has to wait. ``base``:
        first source offset at which a canceller of the requeued record may lie.
        """
        code = reason[0]
        if code == TARGET_ASKED:
            return None
        if code == TARGET_LATER:
            return self.requeuer.give_turn(offset, payload, now_ms, base)
        if code == TARGET_PAUSED:
            return self.requeuer.hold(offset, payload, now_ms, base)
        attempt = payload[6][2] if payload[6] is not None else 1
        if self._is_final(code, attempt) or self.requeuer.topic is None:
            return self._end_with_letter(reason, offset, payload, now_ms, base)
        return self.requeuer.park(offset, payload, now_ms, base, attempt)

    def _is_final(self, code: str, attempt: int) -> bool:
        """Return whether a record is dead-lettered after attempt number ``attempt``, which failed
        with ``code``, instead of being tried again.
        """
        if code == TARGET_UNKNOWN and not self.routes.parks_missing:
            return True
        return code in (TOO_LARGE, TARGET_REFUSED) or attempt > len(self.routes.park_delays_ms)

    def _end_with_letter(
        self, reason: tuple[str, str], offset: int, payload: Payload, now_ms: int, base: int
    ) -> Output | None:
        """Return the dead letter of a pending record, or the output that parks the record while the
        letter can't be written; None: it has to wait.
        """
        letter = self.undelivered.dead_letter_of(offset, payload, *reason)
        return letter or self._put_off(self.routes.dead_letter, offset, payload, now_ms, base)

    def _dead_letter_rest(self, offset: int, payload: Payload, code: str, detail: str) -> Output:
        """Return the dead letter of the rest of a schedule, to accompany its delivered
        occurrence.
        """
        rest = left_after(payload)
        source = self.provenance.source(offset, rest[6])
        again, reason = asked_again(rest), (code, detail)
        return self.undelivered.letter_beside(offset, again, reason, source, rest[5])

    def _limit(
        self, flow: Flow, offset: int, key_ms: int, payload: Payload, now_ms: int, base: int
    ) -> Output | None:
        """Return the output that requeues or dead-letters a record over a rate or cap; None:
        deliver it.

        A cap counts each record once: a key above the due time means that it was put off before.
        """
        if self.requeuer.topic is None:
            return None
        target, due_ms, meta = payload[0], payload[5], payload[6]
        if flow.has_cap and key_ms <= due_ms <= now_ms:
            place_ms = flow.second_ms(self.topic, due_ms, now_ms)
            if place_ms is not None and flow.dead_letters:
                detail = f"more records are due in the second of {due_ms} than it takes"
                reason = (SLOT_FULL, detail)
                return self._end_with_letter(reason, offset, payload, now_ms, base)
            if place_ms is not None and place_ms > now_ms:
                return self.requeuer.pace(offset, payload, place_ms, now_ms, base)
        turn_ms = turn_of(meta)
        if turn_ms is not None and turn_ms <= now_ms and flow.may_go(target, now_ms):
            return None
        if turn_ms is None or turn_ms <= now_ms:
            turn_ms = flow.turn_ms(target, key_ms, now_ms)
        if turn_ms is None:
            return None
        again = (*payload[:6], with_turn(meta, turn_ms))
        return self.requeuer.pace(offset, again, turn_ms, now_ms, base)
