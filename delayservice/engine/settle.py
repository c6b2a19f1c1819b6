"""How one record is settled: which output carries its one outcome. Pure; ``now_ms`` is an input.

The shard decides *that* a record is settled, this module decides *how*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from delayservice.contract.codec import Meta, Payload, next_attempt, turn_of, with_turn
from delayservice.contract.codes import (
    CONTROL_LOST,
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
from delayservice.contract.contracts import Contracts
from delayservice.contract.entry import Original
from delayservice.contract.letters import asked_again, is_large, without_content
from delayservice.contract.names import (
    DELAY_FIRED_BY,
    DELAY_OUTCOME,
    DELAY_SETTLED_BY,
    DELAY_SETTLED_BY_SOURCE,
    DELAY_SETTLES,
    DELAY_SHARD,
    Header,
)
from delayservice.contract.provenance import Provenance, dead_letter_headers
from delayservice.contract.recurrence import (
    CronTime,
    Recurrence,
    at_occurrence,
    first_ms,
    following,
    left_after,
    recurrence_of,
    recurs,
)
from delayservice.contract.requeue import CONTINUES, write_copy
from delayservice.contract.spread import spread_ms
from delayservice.contract.targets import Allowlist
from delayservice.engine import outcome
from delayservice.engine.flow import Flow
from delayservice.engine.outcome import Output
from delayservice.engine.writable import AnyTarget, Targets

_HELD_PARTS: Final = 8
_HELD_TIMES_MAX: Final = 10
"""What has been due for so long is put off for an eighth of that, ten times as long as at first at
most."""
_LATER_MS: Final = 200
"""How long a record is put off at first that its target takes, but not now."""
_SERVICE_TOPIC_MS: Final = 2_000
"""The same, where the dead-letter or the outcomes topic takes nothing."""
_BY_KEY: Final = -1
_SENT: Final = (outcome.DELIVERED, outcome.FIRED)


@dataclass(frozen=True, slots=True)
class Routes:
    """Where outcomes go, and what copies need. The same for every shard of a cluster."""

    dead_letter: str
    outcomes: str
    secret: bytes
    roll_window_ms: int
    roll_spread_ms: int
    """A copy comes back up to so much earlier than after the window: bursts flatten out."""
    park_delays_ms: tuple[int, ...]
    cron_time: CronTime
    held_ms: int = 60_000
    """How long a record is put off at first whose target is paused, and up to half as long again: a
    backlog comes back spread over the rest."""
    accepted: tuple[bytes, ...] = ()
    """Secrets that copies may be signed with besides ``secret``, while one is replaced."""
    allowlist: Callable[[str], Allowlist] = Allowlist
    """Returns the targets that this node's settings allow to a delay topic; without it, none."""
    parks_missing: bool = True
    """Whether records wait for a target that does not exist, or are dead-lettered at once."""

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """The secrets that verify copies. The first signs them."""
        return (self.secret, *self.accepted)


@dataclass(slots=True)
class Verdicts:
    """The broker's answers about single records: facts, not decisions.

    ``refused`` maps a source offset to ``(code, detail)``: the broker will never take this record,
    so it is dead-lettered. ``stripped`` holds those whose dead letter was refused in turn: theirs
    says only where the record is.
    """

    refused: dict[int, tuple[str, str]] = field(default_factory=dict)
    stripped: set[int] = field(default_factory=set)
    staged: set[int] = field(default_factory=set)
    """Those whose dead letter is part of the transaction."""

    def refusal(self, offset: int) -> tuple[str, str] | None:
        """Return why a record was refused, for it is settled now; None: it was not."""
        found = self.refused.get(offset) if self.refused else None
        if found is not None:
            self.staged.add(offset)
        return found

    def refuse(self, refusals: Sequence[tuple[int, tuple[str, str]]]) -> None:
        """Note offsets that the broker refused; those whose dead letter was refused too, as ones
        without content.
        """
        for offset, reason in refusals:
            if offset in self.refused:
                self.stripped.add(offset)
            self.refused.setdefault(offset, reason)

    def committed(self) -> None:
        """Forget those whose dead letter is committed: they never come again."""
        for offset in self.staged:
            self.refused.pop(offset, None)
            self.stripped.discard(offset)
        self.staged.clear()

    def aborted(self) -> None:
        """The transaction was aborted: none of them is settled."""
        self.staged.clear()


class Settler:
    """Builds the outputs of one shard."""

    def __init__(
        self,
        topic: str,
        partition: int,
        routes: Routes,
        verdicts: Verdicts,
        flow: Flow | None = None,
        targets: Targets | None = None,
    ) -> None:
        """``flow``: the limits of the slice; None: there are none. ``targets``: what is known of
        them; None: all can be written to.
        """
        self.topic = topic
        self.partition = partition
        self._shard_name = f"{topic}:{partition}"
        self._source_prefix = f"{topic}:{partition}:".encode()
        self._provenance = Provenance(topic, partition)
        self._routes = routes
        self.verdicts = verdicts
        self.targets: Targets = targets or AnyTarget()
        self._flow = flow if flow is not None and flow.limits else None
        self._allowlist = routes.allowlist(topic)
        self._good = self._allowlist.good
        self.contracts: Contracts | None = None
        """The contracts of the shard's records; None: settings judge every target."""
        self.copies_to: str | None = topic
        """The delay topic that copies are appended to, in the same partition; None where there is
        none: then nothing is parked."""

    @property
    def secret(self) -> bytes:
        """The secret that the service signs with."""
        return self._routes.secret

    @property
    def has_limits(self) -> bool:
        """Return whether a record that is due may have to go later."""
        return self._flow is not None

    def is_copy(self, offset: int, meta: Meta | None) -> bool:
        """Return whether the record at an offset is a copy of one that lies elsewhere."""
        return self._provenance.is_copy(offset, meta)

    def denial(self, offset: int, target: str) -> tuple[str, str] | None:
        """Return why the settings deny a record its target, as code and detail; None: they allow
        it, or the contract at its offset has an allowlist, which judged it when it was read.
        """
        if target in self._good:
            return None
        detail = self._allowlist.denial(target)
        contracts = self.contracts
        if detail is None or (contracts is not None and contracts.at(offset).has_allowlist):
            return None
        return TARGET_DENIED, detail

    def settle(
        self, offset: int, key_ms: int, payload: Payload, now_ms: int, base: int
    ) -> Output | None:
        """The output that settles a pending record whose key has come.

        Rolls when its key was only a roll time, unless its copy was refused, or settings deny its
        target; it is judged again later if that can't be written down now. None when it has to
        wait: neither the record nor a roll is due, which happens only after the clock stepped back;
        its target is paused and there is nowhere to put it off to; its target is being asked for;
        or it needs a copy and none can be appended. ``base`` is the first offset whose record of
        the same id cancels a copy made now (rule 12).
        """
        output = self._settled(offset, key_ms, payload, now_ms, base)
        return output if output is None or self._can_follow(output, payload) else None

    def _can_follow(self, output: Output, payload: Payload) -> bool:
        """Return whether what an output needs appended to the delay topic can be: itself, if it is
        a copy, or the next occurrence.
        """
        meta = payload[6]
        is_followed = output[0] in _SENT and meta is not None and recurs(meta)
        return self.takes_copies() if is_followed or output[0] in outcome.COPIES else True

    def takes_copies(self) -> bool:
        """Return whether copies can be appended now, or there is nowhere to append them to."""
        if self.copies_to is None:
            return True
        place = (self.copies_to, self.partition)
        found = None if place in self.targets.fit else self.targets.obstacle(place)
        return found is None or found[0] == TARGET_PAUSED  # that is for deliveries

    def _settled(
        self, offset: int, key_ms: int, payload: Payload, now_ms: int, base: int
    ) -> Output | None:
        due_ms = payload[5]
        verdicts = self.verdicts
        if due_ms > now_ms and key_ms >= due_ms:
            return None
        refusal = verdicts.refusal(offset)
        if refusal is not None:  # the record, or the copy that it was to be rolled to
            return self._dead_letter_payload(offset, payload, *refusal)
        if due_ms > now_ms and not _was_tried(payload):
            denied = self.denial(offset, payload[0])
            letter = None
            if denied is not None:
                letter = self._dead_letter_payload(offset, payload, *denied)
            return letter or self._roll(offset, payload, now_ms, base)
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
        """Deliver, unless its target is denied or can't take it, or it is too late; None: wait."""
        target, partition, key, value, headers, due_ms, meta = payload
        if target not in self._good:
            denied = self.denial(offset, target)
            if denied is not None:
                return self._end_with_letter(denied, offset, payload, now_ms, base)
        if meta is not None:
            if meta[3] is not None and now_ms > meta[3]:
                told = self._outcome(outcome.EXPIRED, offset, meta[0], meta[1], due_ms, None)
                outcomes = self._routes.outcomes
                return told or self._put_off(outcomes, offset, payload, now_ms, base)
            recurrence = recurrence_of(meta)
            if recurrence is not None and not recurrence.number:
                return self._arm(offset, payload, recurrence, now_ms, base)
            if recurrence is not None and self._lacks_letter(offset, payload, now_ms):
                return self._put_off(self._routes.dead_letter, offset, payload, now_ms, base)
        sent = headers + self._provenance.headers(offset, due_ms, meta)
        if (target, partition) not in self.targets.fit or is_large(value, headers):
            reason = self.targets.obstacle((target, partition))
            reason = reason or self.targets.refusal(target, key, value, sent)
            if reason is not None:
                return self._settle_blocked(reason, offset, payload, now_ms, base)
        return (outcome.DELIVERED, target, partition, key, value, sent, due_ms, offset)

    def takes(self, topic: str) -> bool:
        """Return whether a topic of the service's own can be written to."""
        own = (topic, _BY_KEY)
        return own in self.targets.fit or self.targets.obstacle(own) is None

    def _put_off(
        self, topic: str, offset: int, payload: Payload, now_ms: int, base: int
    ) -> Output | None:
        """Put a record off whose end can't be written to ``topic`` now; None: it has to wait, as it
        does while the cluster is being asked about the topic.
        """
        found = self.targets.obstacle((topic, _BY_KEY))
        if self.copies_to is None or (found is not None and found[0] == TARGET_ASKED):
            return None
        again = (*payload[:6], next_attempt(payload[6]))
        at_ms = self.later_ms(offset, payload, now_ms, _SERVICE_TOPIC_MS)
        return self.copy(outcome.PARKED, offset, again, at_ms, base)

    def _lacks_letter(self, offset: int, payload: Payload, now_ms: int) -> bool:
        """Return whether the schedule ends here with a dead letter that can't be written now."""
        if self.takes(self._routes.dead_letter):
            return False
        source = self._provenance.source(offset, payload[6])
        try:
            following(payload, source, now_ms, self._routes.cron_time)
        except RecordRefusedError:
            return True
        return False

    def fire(self, offset: int, payload: Payload, now_ms: int, by: int) -> Output | None:
        """The output that settles a pending record now, whenever it is due, because the record at
        ``by`` asks for it; None: it has to wait, as in ``settle``.
        """
        refusal = self.verdicts.refusal(offset)
        if refusal is not None:
            return self._dead_letter_payload(offset, payload, *refusal)
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
        """The next occurrence of a schedule, to be appended beside the output that delivers the
        pending one; None: there is none. A dead letter ends a schedule: it says so, and can be
        sent again.
        """
        if output[0] not in _SENT:
            return None
        source = self._provenance.source(offset, payload[6])
        try:
            again = following(payload, source, now_ms, self._routes.cron_time)
        except RecordRefusedError as exc:
            return self._dead_letter_rest(offset, payload, exc.code, exc.detail)
        if again is None:
            return None
        return self.copy(
            outcome.RECURRED, offset, again, self._at_ms(offset, again, now_ms), base, CONTINUES
        )

    def _arm(
        self, offset: int, payload: Payload, recurrence: Recurrence, now_ms: int, base: int
    ) -> Output | None:
        """The copy with the first occurrence of a cron schedule."""
        try:
            first = self._first(offset, payload, recurrence)
        except RecordRefusedError as exc:
            reason = (exc.code, exc.detail)
            return self._end_with_letter(reason, offset, payload, now_ms, base)
        return self.copy(outcome.ROLLED, offset, first, self._at_ms(offset, first, now_ms), base)

    def _first(self, offset: int, payload: Payload, recurrence: Recurrence) -> Payload:
        """A cron schedule at its first occurrence.

        Raises:
            RecordRefusedError: it has none.
        """
        source = self._provenance.source(offset, payload[6])
        due_ms = first_ms(recurrence, payload[5], self._routes.cron_time)
        first = at_occurrence(payload, replace(recurrence, number=1), source, due_ms)
        if first is None:
            raise RecordRefusedError(
                CRON_INVALID, f"{recurrence.cron!r} has no occurrence before its end"
            )
        return first

    def pending_occurrence(self, offset: int, payload: Payload) -> Payload:
        """The record as it is to be fired: of a cron schedule that was just written, its first
        occurrence. One that has none is left as it is, and found out when it is settled.
        """
        recurrence = recurrence_of(payload[6])
        if recurrence is None or recurrence.number:
            return payload
        with suppress(RecordRefusedError):
            return self._first(offset, payload, recurrence)
        return payload

    def dead_letter(
        self,
        offset: int,
        original: Original,
        code: str,
        detail: str,
        due_ms: int = 0,
        source: bytes | None = None,
    ) -> Output | None:
        """The output that carries a record to the dead-letter topic, with the reason; None: that
        topic takes nothing now, and the record has to wait.
        """
        topic = self._routes.dead_letter
        if not self.takes(topic):
            return None
        reason = (code, detail)
        if offset not in self.verdicts.stripped:
            letter = self._letter(offset, original, reason, due_ms, source)
            found = self._refusal(letter)
            if found is None:
                return letter
            if found[0] == TARGET_LATER:
                return None
        letter = self._letter(offset, original, reason, due_ms, source, is_stripped=True)
        return letter if self._refusal(letter) is None else None

    def _refusal(self, output: Output) -> tuple[str, str] | None:
        """Return why a topic of the service's own that can be written to does not take this."""
        _, topic, partition, key, value, headers, _, _ = output
        if (topic, partition) in self.targets.fit and not is_large(value, headers):
            return None
        return self.targets.refusal(topic, key, value, headers)

    def _letter(
        self,
        offset: int,
        original: Original,
        reason: tuple[str, str],
        due_ms: int,
        source: bytes | None,
        *,
        is_stripped: bool = False,
    ) -> Output:
        """The dead letter of a record; ``is_stripped``: one that says only where it is."""
        key, value, headers = original
        code, detail = reason
        self.verdicts.refusal(offset)
        if is_stripped:
            (key, value, headers), told = without_content(original)
            detail = told + detail
        source = source or self._source_prefix + b"%d" % offset
        lettered = dead_letter_headers(headers, code, detail, source)
        lettered += self._provenance.settles(offset, source)
        topic = self._routes.dead_letter
        return (outcome.DEAD_LETTERED, topic, _BY_KEY, key, value, lettered, due_ms, offset)

    def undecided(self, offset: int, payload: Payload, by: int | None) -> Output | None:
        """The dead letter of a record that may have been cancelled, replaced or fired; None: it
        can't be written now. ``by``: see ``doubt``.
        """
        return self._dead_letter_payload(offset, payload, *doubt(by))

    def source(self, offset: int) -> bytes:
        """``delay-source`` of a user's own record at an offset of this shard."""
        return self._provenance.source(offset, None)

    def elsewhere(self, payload: Payload) -> bytes | None:
        """Return where a schedule that has come home was written; None: here."""
        return self._provenance.elsewhere(payload[6])

    def cancelled(
        self,
        kind: int,
        victim_offset: int,
        record_id: bytes,
        by: int,
        by_source: bytes | None = None,
    ) -> Output | None:
        """The outcome of a record that the record at ``by`` cancelled or replaced; None: it can't
        be written now. ``by_source``: where that was written, if it has come home.
        """
        told = self._outcome(kind, victim_offset, record_id, None, 0, by)
        if told is not None and by_source is not None:
            told[5].append((DELAY_SETTLED_BY_SOURCE, by_source))
        return told

    def control(
        self, kind: int, offset: int, record_id: bytes, source: bytes | None = None
    ) -> Output | None:
        """A control record's own outcome; None: it can't be written now. ``source``: where it was
        written, if it has come home.
        """
        source = source or self._source_prefix + b"%d" % offset
        return self._outcome(kind, offset, record_id, source, 0, None)

    def _settle_blocked(
        self, reason: tuple[str, str], offset: int, payload: Payload, now_ms: int, base: int
    ) -> Output | None:
        """Park, or dead letter after the last attempt, because of an obstacle; None: wait."""
        code = reason[0]
        if code == TARGET_ASKED:
            return None
        if code == TARGET_LATER:
            return self._give_turn(offset, payload, now_ms, base)
        if code == TARGET_PAUSED:
            return None if self.copies_to is None else self._hold(offset, payload, now_ms, base)
        attempt = payload[6][2] if payload[6] is not None else 1
        if self._is_final(code, attempt) or self.copies_to is None:
            return self._end_with_letter(reason, offset, payload, now_ms, base)
        return self._park(offset, payload, now_ms, base, attempt)

    def _is_final(self, code: str, attempt: int) -> bool:
        """Return whether no other attempt is made."""
        if code == TARGET_UNKNOWN and not self._routes.parks_missing:
            return True
        return code in (TOO_LARGE, TARGET_REFUSED) or attempt > len(self._routes.park_delays_ms)

    def _end_with_letter(
        self, reason: tuple[str, str], offset: int, payload: Payload, now_ms: int, base: int
    ) -> Output | None:
        """The dead letter of a valid record. While its topic takes nothing the record is put off;
        None: it has to wait.
        """
        letter = self._dead_letter_payload(offset, payload, *reason)
        return letter or self._put_off(self._routes.dead_letter, offset, payload, now_ms, base)

    def _dead_letter_payload(
        self, offset: int, payload: Payload, code: str, detail: str
    ) -> Output | None:
        """A dead letter of a valid record, or None; see ``dead_letter``."""
        source = self._provenance.source(offset, payload[6])
        return self.dead_letter(offset, asked_again(payload), code, detail, payload[5], source)

    def _dead_letter_rest(self, offset: int, payload: Payload, code: str, detail: str) -> Output:
        """Return the dead letter of a schedule whose next occurrence can't be computed: it settles
        nothing, for the occurrence at ``offset`` is delivered.
        """
        rest = left_after(payload)
        source = self._provenance.source(offset, rest[6])
        return self.letter_beside(offset, asked_again(rest), (code, detail), source, rest[5])

    def letter_beside(
        self,
        offset: int,
        original: Original,
        reason: tuple[str, str],
        source: bytes,
        due_ms: int = 0,
    ) -> Output:
        """A dead letter beside the output that settles ``offset``: it settles nothing itself."""
        is_stripped = offset in self.verdicts.stripped
        kind, topic, partition, key, value, headers, due_ms, _ = self._letter(
            offset, original, reason, due_ms, source, is_stripped=is_stripped
        )
        told: list[Header] = [
            (name, b"%d" % CONTINUES if name == DELAY_SETTLES else text) for name, text in headers
        ]
        return (kind, topic, partition, key, value, told, due_ms, offset)

    def _roll(self, offset: int, payload: Payload, now_ms: int, base: int) -> Output:
        at_ms = self._at_ms(offset, payload, now_ms)
        return self.copy(outcome.ROLLED, offset, payload, at_ms, base)

    def _at_ms(self, offset: int, payload: Payload, now_ms: int) -> int:
        """The key of a copy made now: when it is due, or to be rolled again before."""
        routes = self._routes
        window_ms = routes.roll_window_ms - spread_ms(offset, routes.roll_spread_ms)
        return max(min(payload[5], now_ms + window_ms), 1)

    def _limit(
        self, flow: Flow, offset: int, key_ms: int, payload: Payload, now_ms: int, base: int
    ) -> Output | None:
        """Return what a record over a limit gets instead of its delivery; None: it may go.

        Its second counts it once: a key above the due time says that it was moved or parked.
        """
        if self.copies_to is None:
            return None
        target, due_ms, meta = payload[0], payload[5], payload[6]
        if flow.has_cap and key_ms <= due_ms <= now_ms:
            place_ms = flow.second_ms(self.topic, due_ms, now_ms)
            if place_ms is not None and flow.dead_letters:
                detail = f"more records are due in the second of {due_ms} than it takes"
                reason = (SLOT_FULL, detail)
                return self._end_with_letter(reason, offset, payload, now_ms, base)
            if place_ms is not None and place_ms > now_ms:
                return self._pace(offset, payload, place_ms, now_ms, base)
        turn_ms = turn_of(meta)
        if turn_ms is not None and turn_ms <= now_ms and flow.may_go(target, now_ms):
            return None
        if turn_ms is None or turn_ms <= now_ms:
            turn_ms = flow.turn_ms(target, key_ms, now_ms)
        if turn_ms is None:
            return None
        again = (*payload[:6], with_turn(meta, turn_ms))
        return self._pace(offset, again, turn_ms, now_ms, base)

    def _pace(self, offset: int, payload: Payload, at_ms: int, now_ms: int, base: int) -> Output:
        """A copy waits no longer than one that is rolled: the log must still hold it."""
        bounded_ms = min(at_ms, self._at_ms(offset, (*payload[:5], at_ms, None), now_ms))
        return self.copy(outcome.PACED, offset, payload, bounded_ms, base)

    def _park(self, offset: int, payload: Payload, now_ms: int, base: int, attempt: int) -> Output:
        """Put a record off whose target fails. The log must still hold the copy then: it waits no
        longer than one that is rolled.
        """
        at_ms = now_ms + self._routes.park_delays_ms[attempt - 1]
        at_ms = min(at_ms, self._at_ms(offset, (*payload[:5], at_ms, None), now_ms))
        again = (*payload[:6], next_attempt(payload[6]))
        return self.copy(outcome.PARKED, offset, again, at_ms, base)

    def _give_turn(self, offset: int, payload: Payload, now_ms: int, base: int) -> Output | None:
        """Put a record off that its target takes in a moment, as one that is over a limit; None: it
        has to wait.
        """
        if self.copies_to is None:
            return None
        at_ms = self.later_ms(offset, payload, now_ms, _LATER_MS)
        if payload[5] > now_ms and not _was_tried(payload):
            again = (*payload[:6], next_attempt(payload[6]))
        else:
            again = (*payload[:6], with_turn(payload[6], at_ms))
        return self.copy(outcome.PACED, offset, again, at_ms, base)

    def _hold(self, offset: int, payload: Payload, now_ms: int, base: int) -> Output:
        """Put off what goes to a paused target. That is no attempt, so it may last; only what is
        fired before its time has to be told from what is rolled.
        """
        at_ms = self.later_ms(offset, payload, now_ms, self._routes.held_ms)
        if payload[5] > now_ms and not _was_tried(payload):
            payload = (*payload[:6], next_attempt(payload[6]))
        return self.copy(outcome.PARKED, offset, payload, at_ms, base)

    def later_ms(self, offset: int, payload: Payload, now_ms: int, at_first_ms: int) -> int:
        """The key of a record that is put off, longer as the reason lasts: a backlog is written
        anew each time.
        """
        wait_ms = min(
            max(at_first_ms, (now_ms - payload[5]) // _HELD_PARTS), _HELD_TIMES_MAX * at_first_ms
        )
        at_ms = now_ms + wait_ms + spread_ms(offset, wait_ms // 2)
        return min(at_ms, self._at_ms(offset, (*payload[:5], at_ms, None), now_ms))

    def copy(
        self,
        kind: int,
        offset: int,
        payload: Payload,
        at_ms: int,
        base: int,
        settles: int | None = None,
    ) -> Output:
        """The output that appends a record again to its delay topic, with the key ``at_ms``; see
        ``write_copy``.
        """
        source = payload[6][1] if payload[6] is not None else None
        topic = self.copies_to or self.topic
        key, value, headers = write_copy(
            topic,
            self.partition,
            self._routes.secret,
            settles=offset if settles is None else settles,
            source=source or self._source_prefix + b"%d" % offset,
            base=base,
            at_ms=at_ms,
            payload=payload,
            shard=None if topic == self.topic else self._shard_name,
        )
        return (kind, topic, self.partition, key, value, headers, payload[5], offset)

    def _outcome(
        self,
        kind: int,
        offset: int,
        record_id: bytes | None,
        source: bytes | None,
        due_ms: int,
        by: int | None,
    ) -> Output | None:
        topic = self._routes.outcomes
        if not self.takes(topic):
            return None
        headers: list[Header] = [
            (DELAY_OUTCOME, outcome.OUTCOME_NAMES[kind].encode()),
            (DELAY_SHARD, self._shard_name.encode()),
            (DELAY_SETTLES, b"%d" % offset),
        ]
        if record_id is not None:
            headers.append(("delay-id", record_id))
        if source is not None:
            headers.append(("delay-source", source))
        if due_ms:
            headers.append(("delay-due-at", b"%d" % due_ms))
        if by is not None:
            headers.append((DELAY_SETTLED_BY, b"%d" % by))
        told = (kind, topic, _BY_KEY, record_id, None, headers, due_ms, offset)
        return told if self._refusal(told) is None else None


def doubt(by: int | None) -> tuple[str, str]:
    """Return why a record is undecided, as code and detail.

    Args:
        by: the offset of the record that was to settle it, which the log lost before that was
            carried out; None: whether there was one is not known.
    """
    detail = (
        "records that were written after it expired before they were read here, and one of "
        "them may have settled it before"
        if by is None
        else f"the record at offset {by} was to cancel, replace or fire it, and expired first"
    )
    return CONTROL_LOST, detail


def _was_tried(payload: Payload) -> bool:
    """Return whether it was parked before: what is not due even so was fired then, and waits no
    longer.
    """
    meta = payload[6]
    return meta is not None and meta[2] > 1
