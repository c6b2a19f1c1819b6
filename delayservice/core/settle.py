"""How one record is settled: which output carries its one outcome. Pure; ``now_ms`` is an input.

The shard decides *that* a record is settled, this module decides *how*.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from msgspec.structs import replace

from delayservice.core import outcome
from delayservice.core.codec import Header, Payload, next_attempt, turn_of, with_turn
from delayservice.core.codes import (
    CRON_INVALID,
    SLOT_FULL,
    TARGET_ASKED,
    TARGET_PAUSED,
    RecordRefusedError,
)
from delayservice.core.copies import CONTINUES, write_copy
from delayservice.core.entry import Original
from delayservice.core.flow import Flow
from delayservice.core.names import (
    DELAY_FIRED_BY,
    DELAY_OUTCOME,
    DELAY_SETTLED_BY,
    DELAY_SETTLES,
    DELAY_SHARD,
)
from delayservice.core.outcome import Output, Target
from delayservice.core.record import Provenance, dead_letter_headers
from delayservice.core.recurrence import (
    CronTime,
    Recurrence,
    at_occurrence,
    first_ms,
    following,
    left_after,
    recurrence_of,
)
from delayservice.core.spread import spread_ms

_HELD_PARTS: Final = 8
_HELD_TIMES_MAX: Final = 10
"""What has been due for so long is put off for an eighth of that, ten times ``held_ms`` at most."""


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

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """What copies are verified by. The first signs them."""
        return (self.secret, *self.accepted)


class Targets(Protocol):
    """What is known of target topics; answers at once."""

    @property
    def fit(self) -> Container[Target]:
        """Targets that can be written to as far as is known."""

    def obstacle(self, target: Target) -> tuple[str, str] | None:
        """Return why a target can't be written to now, as code and detail; None: it can. With the
        code ``TARGET_ASKED`` the shard waits: the cluster is being asked.
        """


class _All:
    """Contains everything."""

    def __contains__(self, _: object) -> bool:
        return True


class AnyTarget:
    """Targets that can all be written to."""

    fit: Container[Target] = _All()

    def obstacle(self, target: Target) -> tuple[str, str] | None:  # noqa: ARG002  # fit has all
        """Return None."""
        return None


@dataclass(slots=True)
class Verdicts:
    """What the broker said of single records: facts, not decisions.

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
        self._verdicts = verdicts
        self.targets: Targets = targets or AnyTarget()
        self._flow = flow if flow is not None and flow.limits else None
        self.copies_to: str | None = topic
        """The delay topic that copies are appended to, in the same partition; None where there is
        none: then nothing is parked."""

    @property
    def has_limits(self) -> bool:
        """Whether a record that is due may have to go later."""
        return self._flow is not None

    def settle(
        self, offset: int, key_ms: int, payload: Payload, now_ms: int, base: int
    ) -> Output | None:
        """The output that settles a pending record whose key has come.

        Rolls when its key was only a roll time, unless its copy was refused. None when it has to
        wait: neither the record nor a roll is due, which happens only after the clock stepped back;
        its target is paused and there is nowhere to put it off to; or its target is being asked
        for. ``base`` is the first offset whose record of the same id cancels a copy made now (rule
        12).
        """
        due_ms = payload[5]
        verdicts = self._verdicts
        if due_ms > now_ms and key_ms >= due_ms:
            return None
        refusal = verdicts.refusal(offset)
        if refusal is not None:  # the record, or the copy that it was to be rolled to
            return self._dead_letter_payload(offset, payload, *refusal)
        if due_ms > now_ms and not _was_tried(payload):
            return self._roll(offset, payload, now_ms, base)
        output = self._settle_now(offset, payload, now_ms, base)
        if output is None or output[0] != outcome.DELIVERED:
            return output
        if self._flow is not None:
            limited = self._limit(self._flow, offset, key_ms, payload, now_ms, base)
            if limited is not None:
                return limited
        return output if due_ms <= now_ms else (outcome.FIRED, *output[1:])

    def _settle_now(self, offset: int, payload: Payload, now_ms: int, base: int) -> Output | None:
        """Deliver, unless it is too late or the target can't take it; None: wait."""
        target, partition, key, value, headers, due_ms, meta = payload
        if meta is not None:
            if meta[3] is not None and now_ms > meta[3]:
                return self._outcome(outcome.EXPIRED, offset, meta[0], meta[1], due_ms, None)
            recurrence = recurrence_of(meta)
            if recurrence is not None and not recurrence.number:
                return self._arm(offset, payload, recurrence, now_ms, base)
        if (target, partition) not in self.targets.fit:
            obstacle = self.targets.obstacle((target, partition))
            if obstacle is not None:
                return self._settle_blocked(obstacle, offset, payload, now_ms, base)
        sent = headers + self._provenance.headers(offset, due_ms, meta)
        return (outcome.DELIVERED, target, partition, key, value, sent, due_ms, offset)

    def fire(self, offset: int, payload: Payload, now_ms: int, by: int) -> Output | None:
        """The output that settles a pending record now, whenever it is due, because the record at
        ``by`` asks for it; None: it has to wait, as in ``settle``.
        """
        refusal = self._verdicts.refusal(offset)
        if refusal is not None:
            return self._dead_letter_payload(offset, payload, *refusal)
        output = self._settle_now(offset, payload, now_ms, by + 1)
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
        if output[0] not in (outcome.DELIVERED, outcome.FIRED):
            return None
        source = self._provenance.source(offset, payload[6])
        try:
            again = following(payload, source, now_ms, self._routes.cron_time)
        except RecordRefusedError as exc:
            return self._dead_letter_rest(offset, payload, exc.code, exc.detail)
        if again is None:
            return None
        return self._copy(
            outcome.RECURRED, offset, again, self._at_ms(offset, again, now_ms), base, CONTINUES
        )

    def _arm(
        self, offset: int, payload: Payload, recurrence: Recurrence, now_ms: int, base: int
    ) -> Output:
        """The copy with the first occurrence of a cron schedule."""
        try:
            first = self._first(offset, payload, recurrence)
        except RecordRefusedError as exc:
            return self._dead_letter_payload(offset, payload, exc.code, exc.detail)
        return self._copy(outcome.ROLLED, offset, first, self._at_ms(offset, first, now_ms), base)

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
    ) -> Output:
        """The output that carries a record to the dead-letter topic, with the reason."""
        key, value, headers = original
        self._verdicts.refusal(offset)
        if offset in self._verdicts.stripped:
            held = sum(len(part or b"") for _, part in headers) + len(value or b"")
            detail = (
                f"its key, value and headers ({held:,} bytes) are left out, for the dead-letter "
                f"topic refused them; read them at the source; {detail}"
            )
            key, value, headers = None, None, []
        source = source or self._source_prefix + b"%d" % offset
        lettered = dead_letter_headers(headers, code, detail, source)
        lettered += self._provenance.settles(offset, source)
        topic = self._routes.dead_letter
        return (outcome.DEAD_LETTERED, topic, -1, key, value, lettered, due_ms, offset)

    def cancelled(self, kind: int, victim_offset: int, record_id: bytes, by: int) -> Output:
        """The outcome of a record that the record at ``by`` cancelled or replaced."""
        return self._outcome(kind, victim_offset, record_id, None, 0, by)

    def control(self, kind: int, offset: int, record_id: bytes) -> Output:
        """A control record's own outcome."""
        source = self._source_prefix + b"%d" % offset
        return self._outcome(kind, offset, record_id, source, 0, None)

    def _settle_blocked(
        self, reason: tuple[str, str], offset: int, payload: Payload, now_ms: int, base: int
    ) -> Output | None:
        """Park, or dead letter after the last attempt, because of an obstacle; None: wait."""
        if reason[0] == TARGET_ASKED:
            return None
        if reason[0] == TARGET_PAUSED:
            return None if self.copies_to is None else self._hold(offset, payload, now_ms, base)
        attempt = payload[6][2] if payload[6] is not None else 1
        if attempt > len(self._routes.park_delays_ms) or self.copies_to is None:
            return self._dead_letter_payload(offset, payload, *reason)
        return self._park(offset, payload, now_ms, base, attempt)

    def _dead_letter_payload(self, offset: int, payload: Payload, code: str, detail: str) -> Output:
        """A dead letter of a valid record: its headers say again what it asked for, so that it can
        be replayed.
        """
        target, partition, key, value, headers, due_ms, meta = payload
        asked: list[Header] = [
            *headers,
            ("delay-at", b"%d" % due_ms),
            ("delay-target-topic", target.encode()),
        ]
        recurrence = recurrence_of(meta)
        if recurrence is not None:
            asked += recurrence.headers()
        if partition >= 0:
            asked.append(("delay-target-partition", b"%d" % partition))
        if meta is not None and meta[0] is not None:
            asked.append(("delay-id", meta[0]))
        if meta is not None and meta[3] is not None:
            asked.append(("delay-expires-at", b"%d" % meta[3]))
        source = self._provenance.source(offset, meta)
        return self.dead_letter(offset, (key, value, asked), code, detail, due_ms, source)

    def _dead_letter_rest(self, offset: int, payload: Payload, code: str, detail: str) -> Output:
        """What is left of a schedule whose next occurrence can't be computed here: it settles
        nothing, for the occurrence at ``offset`` is delivered.
        """
        rest = left_after(payload)
        kind, topic, partition, key, value, headers, due_ms, _ = self._dead_letter_payload(
            offset, rest, code, detail
        )
        told: list[Header] = [
            (name, b"%d" % CONTINUES if name == DELAY_SETTLES else text) for name, text in headers
        ]
        return (kind, topic, partition, key, value, told, due_ms, offset)

    def _roll(self, offset: int, payload: Payload, now_ms: int, base: int) -> Output:
        at_ms = self._at_ms(offset, payload, now_ms)
        return self._copy(outcome.ROLLED, offset, payload, at_ms, base)

    def _at_ms(self, offset: int, payload: Payload, now_ms: int) -> int:
        """The key of a copy made now: when it is due, or to be rolled again before."""
        routes = self._routes
        window_ms = routes.roll_window_ms - spread_ms(offset, routes.roll_spread_ms)
        return max(min(payload[5], now_ms + window_ms), 1)

    def _limit(
        self, flow: Flow, offset: int, key_ms: int, payload: Payload, now_ms: int, base: int
    ) -> Output | None:
        """What becomes of a record that is over a limit; None: it may go.

        Its second counts it once: a key above the due time says that it was moved or parked.
        """
        if self.copies_to is None:
            return None
        target, due_ms, meta = payload[0], payload[5], payload[6]
        if flow.has_cap and key_ms <= due_ms <= now_ms:
            place_ms = flow.second_ms(self.topic, due_ms, now_ms)
            if place_ms is not None and flow.dead_letters:
                detail = f"more records are due in the second of {due_ms} than it takes"
                return self._dead_letter_payload(offset, payload, SLOT_FULL, detail)
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
        return self._copy(outcome.PACED, offset, payload, bounded_ms, base)

    def _park(self, offset: int, payload: Payload, now_ms: int, base: int, attempt: int) -> Output:
        at_ms = now_ms + self._routes.park_delays_ms[attempt - 1]
        again = (*payload[:6], next_attempt(payload[6]))
        return self._copy(outcome.PARKED, offset, again, at_ms, base)

    def _hold(self, offset: int, payload: Payload, now_ms: int, base: int) -> Output:
        """Put off what goes to a paused target, longer as the pause lasts: a backlog is written
        anew each time. That is no attempt, so it may last; only what is fired before its time has
        to be told from what is rolled.
        """
        held_ms = self._routes.held_ms
        wait_ms = min(max(held_ms, (now_ms - payload[5]) // _HELD_PARTS), _HELD_TIMES_MAX * held_ms)
        at_ms = now_ms + wait_ms + spread_ms(offset, wait_ms // 2)
        at_ms = min(at_ms, self._at_ms(offset, (*payload[:5], at_ms, None), now_ms))
        if payload[5] > now_ms and not _was_tried(payload):
            payload = (*payload[:6], next_attempt(payload[6]))
        return self._copy(outcome.PARKED, offset, payload, at_ms, base)

    def _copy(
        self,
        kind: int,
        offset: int,
        payload: Payload,
        at_ms: int,
        base: int,
        settles: int | None = None,
    ) -> Output:
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
    ) -> Output:
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
        topic = self._routes.outcomes
        return (kind, topic, -1, record_id, None, headers, due_ms, offset)


def _was_tried(payload: Payload) -> bool:
    """Whether it was parked before: what is not due even so was fired then, and waits no longer."""
    meta = payload[6]
    return meta is not None and meta[2] > 1
