"""Builds the output that settles one record, with its one outcome. Pure.

The shard decides *when* a record is settled, this module decides *how*. A record *has to wait* if
no output of it can be written now; the shard tries again later.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeAlias

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
from delayservice.contract.provenance import Provenance, is_large, to_input_headers
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
from delayservice.engine.outcome import Output, Routes
from delayservice.engine.ports import WritableTargets
from delayservice.engine.requeuer import Requeuer, was_tried
from delayservice.engine.undelivered import BY_KEY, UndeliveredOutputs, Verdicts

# First wait of a record whose dead letter or outcomes-topic record can't be written.
_SERVICE_TOPIC_MS: Final = 2_000
_SENT: Final = (outcome.DELIVERED, outcome.FIRED)

# Whether there is time for more that may take milliseconds: to read a fired record, or to search
# the calendar for the next time of a cron expression.
HasTime: TypeAlias = Callable[[], bool]


class Settler:
    """Builder of the outputs that settle one shard's records. ``flow`` None: no limits."""

    def __init__(
        self,
        topic: str,
        partition: int,
        routes: Routes,
        verdicts: Verdicts,
        targets: WritableTargets,
        flow: Flow | None = None,
    ) -> None:
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
        self._has_time: HasTime = lambda: True
        self._has_searched = False

    @property
    def has_limits(self) -> bool:
        return self._flow is not None

    def begin(self, has_time: HasTime) -> None:
        """Begin a walk. After its first search of the calendar it does more only while ``has_time``
        returns True, so that other shards do not wait for one whose expressions are hard to search.
        """
        self._has_time, self._has_searched = has_time, False

    def denial(self, target: str) -> tuple[str, str] | None:
        """Return code and detail of why settings deny ``target``; None: it is allowed."""
        detail = self._allowlist.denial(target)
        return None if detail is None else (TARGET_DENIED, detail)

    def settle(
        self, offset: int, key_ms: int, payload: Payload, now_ms: int, base: int
    ) -> Output | None:
        """Return the output that settles the pending record at ``offset``, whose key time has
        passed.

        A record that is not due yet is rolled, unless the broker refused that before, or settings
        deny its target. ``base`` is the first offset at which a record of its id cancels it if it
        is requeued now (rule 12). None: it has to wait, because

        - it is not due, and no roll is due either, after the clock stepped back;
        - the topic of its output is being looked up;
        - it has to be requeued, and there is no topic for that, or it can't be written to;
        - the broker refused it, and its dead letter can't be written;
        - it is a cron schedule, and there is no time left in this walk to search the calendar.
        """
        if payload[6] is not None and not self._may_search(payload[6]):
            return None
        # Where nothing can be requeued: each retry would take another turn or place.
        saved = None if self._flow is None or self.requeuer.takes() else self._flow
        if saved is not None:
            saved.save()
        output = self._settled(offset, key_ms, payload, now_ms, base)
        if output is None or self._can_follow(output, payload):
            return output
        if saved is not None:
            saved.restore()
        return None

    def _may_search(self, meta: Meta) -> bool:
        recurrence = recurrence_of(meta)
        if recurrence is None or not recurrence.cron:
            return True
        if self._has_searched and not self._has_time():
            return False
        self._has_searched = True
        return True

    # False while the delay topic can't be written to and the output needs it.
    def _can_follow(self, output: Output, payload: Payload) -> bool:
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
            output = self._limit(self._flow, output, key_ms, payload, now_ms, base)
            if output is None or output[0] != outcome.DELIVERED:
                return output
        if due_ms > now_ms:
            output = (outcome.FIRED, *output[1:])
        elif key_ms > due_ms:
            output = (*output[:6], -key_ms, offset)
        return output

    # None: it has to wait.
    def _settle_now(self, offset: int, payload: Payload, now_ms: int, base: int) -> Output | None:
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
        if (target, partition) not in self.targets.writable or is_large(value, headers):
            reason = self.targets.obstacle((target, partition))
            reason = reason or self.targets.refusal(target, key, value, sent)
            if reason is not None:
                return self._settle_blocked(reason, offset, payload, now_ms, base)
        return (outcome.DELIVERED, target, partition, key, value, sent, due_ms, offset)

    # The record is parked, because the topic for its outcome can't take it. None: it has to wait.
    def _put_off(
        self, topic: str, offset: int, payload: Payload, now_ms: int, base: int
    ) -> Output | None:
        found = self.targets.obstacle((topic, BY_KEY))
        if self.requeuer.topic is None or (found is not None and found[0] == TARGET_ASKED):
            return None
        again = (*payload[:6], next_attempt(payload[6]))
        at_ms = self.requeuer.later_ms(offset, payload, now_ms, _SERVICE_TOPIC_MS)
        return self.requeuer.requeue(outcome.PARKED, offset, again, at_ms, base)

    # A schedule whose next occurrence can't be computed ends with a dead letter, which can't be
    # written now.
    def _lacks_letter(self, offset: int, payload: Payload, now_ms: int) -> bool:
        if self.undelivered.takes(self.routes.dead_letter):
            return False
        source = self.provenance.source(offset, payload[6])
        try:
            following(payload, source, now_ms, self.routes.cron_time)
        except RecordRefusedError:
            return True
        return False

    def fire(self, offset: int, payload: Payload, now_ms: int, by: int) -> Output | None:
        """Return the output for a pending record that the one at offset ``by`` fires; None: it
        has to wait, as in ``settle``.
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
        """Return the output of a schedule's next occurrence beside its delivery, or the dead
        letter of the rest if that can't be computed; None: nothing follows.
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

    # None: it has to wait.
    def _arm(
        self, offset: int, payload: Payload, recurrence: Recurrence, now_ms: int, base: int
    ) -> Output | None:
        try:
            first = self._first(offset, payload, recurrence)
        except RecordRefusedError as exc:
            reason = (exc.code, exc.detail)
            return self._end_with_letter(reason, offset, payload, now_ms, base)
        return self.requeuer.roll(offset, first, now_ms, base)

    def _first(self, offset: int, payload: Payload, recurrence: Recurrence) -> Payload:
        source = self.provenance.source(offset, payload[6])
        due_ms = first_ms(recurrence, payload[5], self.routes.cron_time)
        first = at_occurrence(payload, replace(recurrence, number=1), source, due_ms)
        if first is None:
            raise RecordRefusedError(
                CRON_INVALID, f"{recurrence.cron!r} has no occurrence before its end"
            )
        return first

    def pending_occurrence(self, offset: int, payload: Payload) -> Payload:
        """Return the payload that a fire delivers: the first occurrence of a new cron schedule,
        else its own. A schedule without one is dead-lettered when it is settled.
        """
        recurrence = recurrence_of(payload[6])
        if recurrence is None or recurrence.number:
            return payload
        with suppress(RecordRefusedError):
            return self._first(offset, payload, recurrence)
        return payload

    # None: it has to wait.
    def _settle_blocked(
        self, reason: tuple[str, str], offset: int, payload: Payload, now_ms: int, base: int
    ) -> Output | None:
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
        if code == TARGET_UNKNOWN and not self.routes.parks_missing:
            return True
        return code in (TOO_LARGE, TARGET_REFUSED) or attempt > len(self.routes.park_delays_ms)

    # The dead letter, or the output that parks the record until it can be written.
    def _end_with_letter(
        self, reason: tuple[str, str], offset: int, payload: Payload, now_ms: int, base: int
    ) -> Output | None:
        letter = self.undelivered.dead_letter_of(offset, payload, *reason)
        return letter or self._put_off(self.routes.dead_letter, offset, payload, now_ms, base)

    # False: the topic refuses or can't take any letter, and not only in this transaction.
    def _takes_letters_soon(self) -> bool:
        topic = self.routes.dead_letter
        found = self.targets.obstacle((topic, BY_KEY))
        found = found or self.targets.refusal(topic, None, None, [])
        return found is None or found[0] in (TARGET_ASKED, TARGET_LATER)

    # The letter accompanies the delivered occurrence.
    def _dead_letter_rest(self, offset: int, payload: Payload, code: str, detail: str) -> Output:
        rest = left_after(payload)
        source = self.provenance.source(offset, rest[6])
        again, reason = to_input_headers(rest), (code, detail)
        return self.undelivered.letter_beside(offset, again, reason, source, rest[5])

    # The delivery, or the output that takes its place. None: it has to wait. A cap counts each
    # record once: a key above the due time means that it was put off before.
    def _limit(
        self, flow: Flow, delivery: Output, key_ms: int, payload: Payload, now_ms: int, base: int
    ) -> Output | None:
        if self.requeuer.topic is None:
            return delivery
        target, due_ms, meta, offset = payload[0], payload[5], payload[6], delivery[7]
        if flow.has_cap and key_ms <= due_ms <= now_ms:
            place_ms = flow.second_ms(self.topic, due_ms, now_ms)
            if place_ms is not None and flow.dead_letters:
                detail = f"more records are due in the second of {due_ms} than it takes"
                letter = self.undelivered.dead_letter_of(offset, payload, SLOT_FULL, detail)
                if letter is None and not self._takes_letters_soon():
                    topic = self.routes.dead_letter
                    letter = self._put_off(topic, offset, payload, now_ms, base)
                if letter is None:
                    flow.judge_again()
                return letter
            if place_ms is not None and place_ms > now_ms:
                return self.requeuer.pace(offset, payload, place_ms, now_ms, base)
        turn_ms = turn_of(meta)
        if turn_ms is not None and turn_ms <= now_ms and flow.may_go(target, now_ms):
            return delivery
        if turn_ms is None or turn_ms <= now_ms:
            turn_ms = flow.turn_ms(target, key_ms, now_ms)
        if turn_ms is None:
            return delivery
        again = (*payload[:6], with_turn(meta, turn_ms))
        return self.requeuer.pace(offset, again, turn_ms, now_ms, base)
