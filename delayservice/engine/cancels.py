"""Builds the outputs that settle a record, and those that settle its victims. Pure.

``cursor`` defines K and H, ``docs/internals/design.md`` the numbered rules. A *victim* is a pending
record that a user's record of its id cancels, replaces or fires. A requeued record is *in flight*
from its append until it is read back; its *base* is the first offset at which a record of its id
cancels it. A ``HOMEBOUND`` record has an id whose home is another partition. A record *waits* if
neither H nor K can pass it now.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Final, TypeAlias

from delayservice.contract.codec import Payload
from delayservice.contract.entry import (
    ABSENT,
    CANCEL,
    CONTROL_EXPIRED,
    COPY,
    FIRE,
    HOMEBOUND,
    INVALID,
    SCHEDULE,
    Entry,
)
from delayservice.contract.home import SETTLES_NOTHING, Group, waiting_group
from delayservice.contract.recurrence import recurs
from delayservice.engine import outcome
from delayservice.engine.cursor import NO_MARK, Key
from delayservice.engine.marking import Scans
from delayservice.engine.outcome import Output
from delayservice.engine.settle import Settler
from delayservice.engine.to_home import ToHome, WaitingForHome

_OUTCOMES: Final = {
    SCHEDULE: outcome.REPLACED,
    CANCEL: outcome.CANCELLED,
    FIRE: outcome.FIRED,
    ABSENT: outcome.KEPT,
}

# Reads the pending record at a key, because another one fires it; None: it is read from the log
# meanwhile, and what fires it waits.
PendingAt: TypeAlias = Callable[[Key], Payload | None]


class OffsetAdvance:
    """State of an owner's pass over a shard's records: which pending records each one settles.

    ``victims`` are by the offset of the user record that settles them, or of the ``ABSENT`` one
    that is not scheduled while they are pending. ``canceller_of`` holds, by a
    requeued record's offset, that of the first user record of its id in ``[base, offset)``, or
    ``NO_MARK``. ``in_flight`` has the base of each requeued record in flight, by id. Those of the
    open transaction are among them: all is forgotten if that is aborted. ``undecided`` has the
    offsets of the ``ABSENT`` records that H has not passed, by id.
    """

    def __init__(self, settler: Settler) -> None:
        self._settler = settler
        self._to_home = ToHome(settler)
        self._queue: Sequence[Entry] = ()
        self._pending_at: PendingAt = _unread
        self.victims: dict[int, dict[Key, None]] = {}
        self.canceller_of: dict[int, int] = {}
        self.in_flight: dict[bytes, list[int]] = {}
        self.undecided: dict[bytes, set[int]] = {}
        self.reads = 0

    def begin(self, queue: Sequence[Entry], pending_at: PendingAt) -> None:
        """Start a pass over the decoded records ``queue``."""
        self._queue = queue
        self._pending_at = pending_at
        self.reads = 0

    @property
    def waits(self) -> bool:
        return bool(self.in_flight)

    def forget(self) -> None:
        """Forget all victims and records in flight, because the node's role has changed."""
        self.victims.clear()
        self.canceller_of.clear()
        self.in_flight.clear()
        self.undecided.clear()

    def mark(self, marks: Iterable[tuple[int, Key]]) -> None:
        for offset, key in marks:
            self.victims.setdefault(offset, {})[key] = None

    def note_absent(
        self, named: Iterable[tuple[bytes, Entry]], cancellers: Scans, here: int
    ) -> None:
        """Note the ``ABSENT`` records from ``here`` on among those just read, and to which of them,
        read before, a requeued record is pending. ``cancellers`` are by the offset of the requeued
        one.
        """
        for record_id, (offset, kind, key_ms, _, _, _) in named:
            if kind == ABSENT and offset >= here:
                self.undecided.setdefault(record_id, set()).add(offset)
            elif kind == COPY:
                x = cancellers[offset]
                self.mark(
                    (absent, (key_ms, offset))
                    for absent in self.undecided.get(record_id, ())
                    if absent < offset and not 0 <= x < absent
                )

    def came_back(self, record_id: bytes, base: int) -> None:
        """Note that the requeued record with this id and base was read back from the log."""
        bases = self.in_flight.get(record_id, [])
        if base in bases:
            bases.remove(base)
        if not bases:
            self.in_flight.pop(record_id, None)

    def commit(self, passed: Iterable[Entry]) -> None:
        """Note the commit: victims of ``passed`` records are settled."""
        for entry in passed:
            self.victims.pop(entry[0], None)
            self.canceller_of.pop(entry[0], None)
            if entry[1] == ABSENT and entry[3] is not None:
                self._decided(entry[3], entry[0])

    def _decided(self, record_id: bytes, offset: int) -> None:
        absent = self.undecided.get(record_id, set())
        absent.discard(offset)
        if not absent:
            self.undecided.pop(record_id, None)

    def take(self, entry: Entry, k: Key, now_ms: int, outputs: list[Output]) -> bool:
        """Add the outputs of the next record that H passes, and of its victims; return False if
        it waits.
        """
        offset, kind, key_ms, record_id, payload, extra = entry
        if kind == INVALID:
            return _took([self._settler.undelivered.dead_letter(offset, payload, *extra)], outputs)
        if kind == CONTROL_EXPIRED:
            victims = self._pending_victims(offset, k)
            return _took_all([self._spared(victims, now_ms, extra)], outputs)
        settled: list[Output] | None = []
        if record_id is not None and kind != COPY:
            if self._awaits_copy(record_id, offset):
                return False
            act = self._send_home if kind == HOMEBOUND else self._act_at_home
            settled = act(entry, record_id, k, now_ms)
        if settled is None:
            return False
        if kind <= COPY and (key_ms, offset) <= k:
            x = self.canceller_of.get(offset, NO_MARK)
            if not 0 <= x < offset:  # else dead on arrival
                late = self.settle(offset, key_ms, payload, now_ms, offset + 1)
                if late is None:
                    return False
                settled += late
        outputs += settled
        return True

    # With the mark of an expired control they would count as settled. Key time 0: requeued unless
    # due.
    def _spared(self, victims: Sequence[Key], now_ms: int, base: int) -> list[Output] | None:
        contents = [content for one in victims if (content := self._content(one)) is not None]
        if len(contents) < len(victims):
            return None
        outputs: list[Output] = []
        parts = [
            self.settle(victim[1], 0, content, now_ms, base)
            for victim, content in zip(victims, contents, strict=True)
        ]
        return outputs if _took_all(parts, outputs) else None

    # The own outcome of a cancel or fire comes last. None: the record waits.
    def _act_at_home(
        self, entry: Entry, record_id: bytes, k: Key, now_ms: int
    ) -> list[Output] | None:
        offset, kind, _, _, payload, source = entry
        victims = self._pending_victims(offset, k)
        if kind == SCHEDULE:
            source = self._settler.provenance.elsewhere(payload[6])
            return self._settle_victims(entry, record_id, source, victims, now_ms)
        if kind == ABSENT:
            return self._schedule_if_absent(entry, record_id, victims, now_ms)
        own = _OUTCOMES[kind] if victims else outcome.NOT_PENDING
        said = self._settler.undelivered.control(own, offset, record_id, source)
        if said is None:
            return None
        told = self._settle_victims(entry, record_id, source, victims, now_ms)
        return None if told is None else [*told, said]

    # Key time 0: requeued unless due. What is pending already stays as it is.
    def _schedule_if_absent(
        self, entry: Entry, record_id: bytes, pending: Sequence[Key], now_ms: int
    ) -> list[Output] | None:
        offset, _, _, _, _, payload = entry
        if not pending:
            return self.settle(offset, 0, payload, now_ms, offset + 1)
        source = self._settler.provenance.elsewhere(payload[6])
        return _one(self._settler.undelivered.control(outcome.KEPT, offset, record_id, source))

    # A cancel or fire that settled a victim here, or that the delay topic refuses, is not sent.
    def _send_home(
        self, entry: Entry, record_id: bytes, k: Key, now_ms: int
    ) -> list[Output] | None:
        offset, _, _, _, original, (kind, _, _) = entry
        here: list[Key] = []
        waiting: list[WaitingForHome] = []
        for victim in self._pending_victims(offset, k):
            payload = self._content(victim)
            if payload is None:
                return None
            if self._to_home.is_waiting(payload):
                waiting.append(WaitingForHome(victim[1], payload))
            else:
                here.append(victim)
        carried, took, replaced = _taken_along(kind, waiting)
        is_done = bool(here) and kind != SCHEDULE
        refusal = None if is_done else self._to_home.refusal(entry, record_id, carried)
        if is_done or refusal is not None:  # waiting victims are sent without it
            own = (
                self._settler.undelivered.control(_OUTCOMES[kind], offset, record_id)
                if refusal is None
                else self._settler.undelivered.dead_letter(offset, original, *refusal)
            )
            parts = [self._to_home.go_on(one, now_ms, offset + 1) for one in waiting]
            parts.append(_one(own))
        else:
            parts = [
                _one(self._settler.undelivered.cancelled(outcome.REPLACED, one, record_id, offset))
                for one in replaced
            ]
            parts.append(self._to_home.leave(entry, record_id, carried, took, now_ms))
        sent: list[Output] = []
        if not _took_all(parts, sent):
            return None
        # Called last, because the records that it fires may be in flight from then on.
        told = self._settle_victims(entry, record_id, None, here, now_ms)
        if told is None:
            return None
        return [*told, *self._flying(sent, record_id, offset + 1)]

    def settle(
        self, offset: int, key_ms: int, payload: Payload, now_ms: int, base: int
    ) -> list[Output] | None:
        """Return the outputs for a record whose key time has passed; None: it waits.
        ``base``: base if it is requeued now.
        """
        if self._to_home.is_waiting(payload):
            sent = self._to_home.go_on(WaitingForHome(offset, payload), now_ms, base)
            record_id = None if payload[6] is None else payload[6][0]
            return None if sent is None else self._flying(sent, record_id, base)
        output = self._settler.settle(offset, key_ms, payload, now_ms, base)
        if output is None:
            return None
        return self._with_following(output, offset, payload, now_ms, base)

    def _with_following(
        self, output: Output, offset: int, payload: Payload, now_ms: int, base: int
    ) -> list[Output]:
        meta = payload[6]
        if meta is None:
            return [output]
        outputs = [output]
        if recurs(meta):
            again = self._settler.following(output, offset, payload, now_ms, base)
            outputs += [] if again is None else [again]
        self._flying(outputs, meta[0], base)
        return outputs

    # Requeued ones are in flight from now on (rule 14).
    def _flying(self, outputs: list[Output], record_id: bytes | None, base: int) -> list[Output]:
        if record_id is not None:
            bases = [base for one in outputs if one[0] in outcome.COPIES]
            if bases:
                self.in_flight.setdefault(record_id, []).extend(bases)
        return outputs

    def _awaits_copy(self, record_id: bytes, offset: int) -> bool:
        return any(base <= offset for base in self.in_flight.get(record_id, ()))

    # Rule 8 says which victims are still pending.
    def _pending_victims(self, offset: int, k: Key) -> list[Key]:
        victims = self.victims.get(offset, ())
        return [victim for victim in victims if victim[1] >= offset or victim > k]

    def _settle_victims(
        self,
        entry: Entry,
        record_id: bytes,
        source: bytes | None,
        victims: Sequence[Key],
        now_ms: int,
    ) -> list[Output] | None:
        offset, kind, _, _, _, extra = entry
        kind = extra[0] if kind == HOMEBOUND else kind
        if kind == FIRE:
            return self._fire_victims(offset, victims, now_ms)
        if kind == ABSENT:
            return self._spared(victims, now_ms, offset + 1)
        told = [
            self._settler.undelivered.cancelled(
                _OUTCOMES[kind], victim[1], record_id, offset, source
            )
            for victim in victims
        ]
        outputs: list[Output] = []
        return outputs if _took(told, outputs) else None

    def _fire_victims(
        self, offset: int, victims: Sequence[Key], now_ms: int
    ) -> list[Output] | None:
        fired: list[tuple[Output, int, Payload]] = []
        for victim in victims:
            found = self._content(victim)
            if found is None:
                return None
            payload = self._settler.pending_occurrence(victim[1], found)
            output = self._settler.fire(victim[1], payload, now_ms, offset)
            if output is None:
                return None
            fired.append((output, victim[1], payload))
        outputs: list[Output] = []
        for output, victim_offset, payload in fired:
            outputs += self._with_following(output, victim_offset, payload, now_ms, offset + 1)
        return outputs

    def _content(self, victim: Key) -> Payload | None:
        queued = self._queued(victim[1])
        if queued is not None:
            return queued
        self.reads += 1
        return self._pending_at(victim)

    # A requeued record with a key below K is only in the queue, not in the store.
    def _queued(self, offset: int) -> Payload | None:
        at = bisect_left(self._queue, offset, key=itemgetter(0))
        if at == len(self._queue) or self._queue[at][0] != offset or self._queue[at][1] > COPY:
            return None
        payload: Payload = self._queue[at][4]
        return payload


def _unread(_: Key) -> Payload:
    raise AssertionError("begin was not called")


# The users' records to send home first, the offset of the waiting record that this settles, and the
# replaced offsets.
def _taken_along(kind: int, waiting: Sequence[WaitingForHome]) -> tuple[Group, int, list[int]]:
    carried: Group = ()
    took, replaced = SETTLES_NOTHING, []
    for one in waiting:  # one at most, for each takes along what it finds
        carried = waiting_group(one.payload)
        took = one.offset
        if kind == SCHEDULE == carried[-1].kind:
            carried, took = carried[:-1], SETTLES_NOTHING
            replaced.append(one.offset)
    return carried, took, replaced


def _one(output: Output | None) -> list[Output] | None:
    return None if output is None else [output]


def _took(told: Sequence[Output | None], outputs: list[Output]) -> bool:
    return _took_all([_one(one) for one in told], outputs)


def _took_all(parts: Sequence[list[Output] | None], outputs: list[Output]) -> bool:
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return False
    for part in found:
        outputs += part
    return True
