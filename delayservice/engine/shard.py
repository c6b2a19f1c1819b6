"""The state machine of one shard: records in, ordered settlements out. No I/O and no clock.

The cursor is two-dimensional, ``(K, H)`` (see ``cursor``). The owner walks in two directions, both
in a deterministic order, so either walk may be cut at any point:

``advance_offset``  moves H with K fixed: settles late records, controls and invalid records in
                    offset order. Cancels and reschedules take effect here, and only here.
``advance_key``     moves K with H fixed: settles pending records in key order, up to now.

Both only *stage*: nothing is settled until ``commit`` says that the transaction which carried the
outputs and the staged cursor is committed; ``abort`` puts everything back. The rules quoted by
number are those of ``docs/internals/design.md``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

from delayservice.contract.codec import Payload, decode_payload
from delayservice.contract.entry import (
    CANCEL,
    CONTROL_LOST,
    COPY,
    FIRE,
    HOMEBOUND,
    INVALID,
    SCHEDULE,
    Entry,
    Original,
)
from delayservice.contract.home import SETTLES_NOTHING, Group, waiting_group
from delayservice.contract.recurrence import recurs
from delayservice.engine import outcome
from delayservice.engine.cursor import Cursor, Key
from delayservice.engine.homeward import Homeward, Waiting
from delayservice.engine.losses import Gap
from delayservice.engine.outcome import Output
from delayservice.engine.pending import NO_MARK, Additions, Frame
from delayservice.engine.settle import Settler, doubt
from delayservice.engine.storing import LatestUnmarked, RecentNames, Scans, additions, bearing_ids

_HOLD_BACK_MS: Final = 250
"""Longest time that K waits for controls that H has not passed yet."""

_FATES: Final = {
    SCHEDULE: outcome.REPLACED,
    CANCEL: outcome.CANCELLED,
    FIRE: outcome.FIRED,
}
"""The outcome of a pending record that another one of its id hits, by the other's kind."""

_NO_CONTENT: Final[Original] = (None, None, [])

PendingAt: TypeAlias = Callable[[Key], Payload]
"""What is pending at a key: asked for the few records that are fired, which may be due years ahead
and were not read yet.
"""

MayRead: TypeAlias = Callable[[], bool]
"""Whether there is time to read another record that is fired: each may lie anywhere."""


def at_will() -> bool:
    """Read without a bound."""
    return True


class CopyScan(NamedTuple):
    """A stretch of the log to be searched for the first user record of an id (rule 13)."""

    key_ms: int
    copy_offset: int
    record_id: bytes
    base: int


class Shard:
    """Holds what one node knows of one shard. Single-threaded.

    Attributes:
        stored: S, the next source offset to be stored.
        read: the next source offset to be queued for the walk of H; ``staged.offset <= read``.
        seen: up to here the log was read since take-over, queued or not: copies in flight are
            known.
        end: L, the end of the log at take-over; H stands still until everything below it is stored.
        committed: the cursor as last committed, which is what routes records to the store.
        staged: the cursor that the outputs staged so far will commit.
        is_held: whether the last walk of K stopped at a record that has to wait.
        doubts: gaps in which records may have settled others that this store holds.
    """

    def __init__(
        self,
        settler: Settler,
        stored: int,
        queue_max: int = 20_000,
        queue_bytes_max: int = 32 << 20,
    ) -> None:
        self._settler = settler
        self._homeward = Homeward(settler)
        self._queue_max = queue_max
        self._queue_bytes_max = queue_bytes_max
        self._queue_bytes = 0
        self._names = RecentNames()
        self._queue: list[Entry] = []
        self._passed: list[Entry] = []
        self._rewalk = 0
        self._reads = 0
        self.is_held = False
        self.doubts: tuple[Gap, ...] = ()
        self._log_start = 0
        """Start of the log at take-over: records below it can't be walked."""
        self._x_of_copies: dict[int, int] = {}
        self._victims: dict[int, dict[Key, None]] = {}
        self._in_flight = _Flights()
        self._in_flight_staged = _Flights()
        self.owned = False
        self.stored = stored
        self.read = stored
        self.seen = stored
        self.end = 0
        self.committed = Cursor()
        self.staged = Cursor()

    # --- roles ---------------------------------------------------------------------------------

    def follow(self, cursor: Cursor) -> None:
        """Be a replica: store, and keep up with the checkpoint as read back."""
        self._forget_walk()
        self.owned = False
        self.committed = self.staged = cursor

    def take_over(
        self, cursor: Cursor, marked: Iterable[tuple[int, Key]], end: int, log_start: int = 0
    ) -> None:
        """Own the shard from ``cursor`` on (rule 7). Where the log has lost what H has to walk, H
        stops only at the offsets of marks: they are all that is known.

        Args:
            cursor: the latest checkpoint, read after the old owner was fenced.
            marked: ``Store.marked_from(cursor.offset)``: marks that H has not passed yet.
            end: L, the high watermark read after the old owner was fenced.
            log_start: the first offset that the log holds; all below it was stored, or skipped.
        """
        self._forget_walk()
        self.owned = True
        self.committed = self.staged = cursor
        self.read = self.seen = max(cursor.offset, log_start)
        self.end = end
        self._log_start = log_start
        for mark, key in marked:
            self._victims.setdefault(mark, {})[key] = None
        expired = sorted(mark for mark in self._victims if mark < log_start)
        self._queue += [(mark, CONTROL_LOST, 0, None, _NO_CONTENT, None) for mark in expired]

    def _forget_walk(self) -> None:
        self._clear_queue()
        self._x_of_copies.clear()
        self._victims.clear()
        self._in_flight.clear()
        self._in_flight_staged.clear()

    def _clear_queue(self) -> None:
        self._queue.clear()
        self._passed.clear()
        self._queue_bytes = 0
        self._rewalk = 0

    # --- poll and store ------------------------------------------------------------------------

    @property
    def wanted(self) -> int:
        """The source offset to read next. What lies in ``[H, S)`` is read again from the log after
        a take-over, and whenever the queue had to be cut while S ran ahead.
        """
        if not self.owned:
            return self.stored
        if self.seen < min(self.end, self.stored):
            return self.seen
        if self.read < self.stored and self.has_room:
            return self.read
        return self.stored

    @property
    def caught_up(self) -> bool:
        """Return whether H may move (rules 7, 14): everything that the log held at take-over is
        stored, and its copies in flight are known, which the store lacks where their time has
        passed.
        """
        return self.stored >= self.end and self.seen >= self.end

    @property
    def awaited_end(self) -> int:
        """Return L as long as H waits for it, S while what is stored is read again; else 0."""
        if not self.owned:
            return 0
        if not self.caught_up:
            return self.end
        return self.stored if self.wanted < self.stored else 0

    @property
    def has_room(self) -> bool:
        """Return whether the walk's queue takes more. What does not fit is read again later."""
        held = len(self._queue) + len(self._passed)
        return held < self._queue_max and self._queue_bytes < self._queue_bytes_max

    @property
    def is_full(self) -> bool:
        """Return whether reading on is of no use now, because H has to move first and can. While it
        waits for the end of the log at take-over, or for an own copy, only reading on lets it move.
        """
        return self.owned and self.caught_up and not self.has_room and not self._waits

    def scans_needed(self, start: int, entries: Sequence[Entry], stop: int) -> list[CopyScan]:
        """Stretches of the log that ``ingest`` of the same run must know the ``x`` of. Usually
        none: what was read a moment ago is remembered.
        """
        named = bearing_ids(entries)
        self._names.observe(start, named, stop)
        return [
            CopyScan(key_ms, offset, record_id, base)
            for record_id, (offset, kind, key_ms, _, _, base) in named
            if kind == COPY and self._names.first(record_id, base, offset) is None
        ]

    def ingest(
        self,
        start: int,
        entries: Sequence[Entry],
        stop: int,
        scanned: Scans,
        latest_unmarked: LatestUnmarked,
    ) -> Additions:
        """Take the run ``[start, stop)`` of the log, read from ``wanted``, and say what to store.

        The caller appends the additions to the store before anything else happens to the
        shard. ``entries`` may be empty: offsets of transaction markers carry no record.
        """
        scans = self._resolve(entries, scanned)
        added = Additions()
        if stop > self.stored:
            fresh = entries if start >= self.stored else [e for e in entries if e[0] >= self.stored]
            added = additions(fresh, self.committed.key, latest_unmarked, scans)
        if self.owned:
            self._queue_for_walk(start, entries, stop, scans, added)
        self.stored = max(self.stored, stop)
        if not self.owned:
            self.read = self.stored
        return added

    def _resolve(self, entries: Sequence[Entry], scanned: Scans) -> dict[int, int]:
        scans: dict[int, int] = {}
        for record_id, (offset, kind, _, _, _, base) in bearing_ids(entries):
            if kind != COPY:
                continue
            known = self._names.first(record_id, base, offset)
            scans[offset] = scanned[offset] if known is None else known
            self._in_flight.discard(record_id, base)
            # It may come back before the answer to the commit that carried it.
            self._in_flight_staged.discard(record_id, base)
        return scans

    def _queue_for_walk(
        self, start: int, entries: Sequence[Entry], stop: int, scans: Scans, added: Additions
    ) -> None:
        here = self.committed.offset
        for _, key_ms, offset, mark in added.marks:
            if mark >= here:  # else H has passed it: the store is filled again
                self._victims.setdefault(mark, {})[(key_ms, offset)] = None
        for entry in entries if scans else ():
            offset = entry[0]
            x = scans.get(offset, NO_MARK)
            if x >= here:  # in flight: hit when H passes x, wherever its key lies (rule 14)
                self._victims.setdefault(x, {})[(entry[2], offset)] = None
        if start <= self.seen < stop:
            self.seen = stop
        contiguous = start <= self.read < stop
        if contiguous and self.has_room:
            unread = self.read
            queued = entries if start == unread else [e for e in entries if e[0] >= unread]
            self._queue.extend(queued)
            if len(added.frames) == len(queued):  # nearly always; five times as fast
                self._queue_bytes += sum([len(frame[3]) for frame in added.frames])
            else:
                self._queue_bytes += _content_bytes(queued)
            self._x_of_copies.update((o, x) for o, x in scans.items() if o >= unread)
            self.read = stop

    # --- settle --------------------------------------------------------------------------------

    def advance_offset(
        self, now_ms: int, limit: int, pending_at: PendingAt, may_read: MayRead = at_will
    ) -> list[Output]:
        """Walk H over what is queued, K fixed (rules 8 and 9); at most about ``limit`` outputs.
        ``pending_at`` is asked for what is fired: for one record, and as long as ``may_read`` says
        so for more.

        Stops early at a late record that is not due (the clock stepped back), at a canceller whose
        victim's own copy is still on its way back from the log (rule 14), and at what has to be
        written to a topic of the service that takes nothing now.
        """
        outputs: list[Output] = []
        is_caught_up = self.caught_up
        if not is_caught_up and self.staged.offset >= self._log_start:
            return outputs
        queue, passed = self._queue, self._passed
        k = self.staged.key
        k_ms = k[0]
        is_held = False
        walked = self._reads = 0
        log_start = self._log_start
        for entry in queue if is_caught_up else [e for e in queue if e[0] < log_start]:
            # Plain pending records, nearly all, are passed in this line and forgotten: what a batch
            # takes in memory is taken again by the next while it is in the cache (bench whole).
            if entry[2] <= k_ms or entry[1] != SCHEDULE or entry[3] is not None:
                if entry[1] >= FIRE and self._reads and not may_read():
                    break
                if len(outputs) >= limit:
                    break
                if not self._pass(entry, k, now_ms, pending_at, outputs):
                    is_held = True
                    break
                passed.append(entry)
            walked += 1
        reached = queue[walked][0] if walked < len(queue) else self.read
        if not is_caught_up:
            reached = min(reached, log_start)
        del queue[:walked]
        if not queue and not passed:
            self._queue_bytes = 0
        self.staged = Cursor(k, reached)
        if is_held and is_caught_up and reached < self._rewalk:
            self._read_again(reached)
        return outputs

    def _read_again(self, offset: int) -> None:
        """Read the log again from where H has to wait, short of what it had passed before an abort:
        what was forgotten there comes back, so that K need not wait for H.
        """
        self._queue.clear()
        self._queue_bytes = _content_bytes(self._passed)
        self.read = offset
        self._rewalk = 0

    def _pass(
        self,
        entry: Entry,
        k: Key,
        now_ms: int,
        pending_at: PendingAt,
        outputs: list[Output],
    ) -> bool:
        """H passes one record that may need settling; False when H has to wait there."""
        offset, kind, key_ms, record_id, payload, extra = entry
        if kind == INVALID:
            return _took([self._settler.dead_letter(offset, payload, *extra)], outputs)
        if kind == CONTROL_LOST:
            victims = self._pending_victims(offset, k)
            told = [
                self._undecided(victim[1], self._content(victim, pending_at), offset)
                for victim in victims
            ]
            return _took_all(told, outputs)
        settled: list[Output] | None = []
        if record_id is not None and kind != COPY:
            if self._awaits_copy(record_id, offset):
                return False
            act = self._send_home if kind == HOMEBOUND else self._act_at_home
            settled = act(entry, record_id, k, now_ms, pending_at)
        if settled is None:
            return False
        if kind <= COPY and (key_ms, offset) <= k:
            x = self._x_of_copies.get(offset, NO_MARK)
            if not 0 <= x < offset:  # else dead on arrival
                late = self._settle(offset, key_ms, payload, now_ms, offset + 1)
                if late is None:
                    return False
                settled += late
        outputs += settled
        return True

    def _act_at_home(
        self, entry: Entry, record_id: bytes, k: Key, now_ms: int, pending_at: PendingAt
    ) -> list[Output] | None:
        """Return the outputs of what a user record that stays here hits, and of a cancel or fire
        its own outcome, which comes last; None: H has to wait there.
        """
        offset, kind, _, _, payload, source = entry
        victims = self._pending_victims(offset, k)
        if kind == SCHEDULE:
            source = self._settler.elsewhere(payload)
            return self._settle_victims(entry, record_id, source, victims, now_ms, pending_at)
        own = _FATES[kind] if victims else outcome.NOT_PENDING
        said = self._settler.control(own, offset, record_id, source)
        if said is None:
            return None
        told = self._settle_victims(entry, record_id, source, victims, now_ms, pending_at)
        return None if told is None else [*told, said]

    def _send_home(
        self, entry: Entry, record_id: bytes, k: Key, now_ms: int, pending_at: PendingAt
    ) -> list[Output] | None:
        """Settle what is pending where a record lies, then send it home with what waited for that,
        unless it is a cancel or fire and has done its work; None: H has to wait there.
        """
        offset, _, _, _, original, (kind, _, _) = entry
        here: list[Key] = []
        waiting: list[Waiting] = []
        for victim in self._pending_victims(offset, k):
            payload = self._content(victim, pending_at)
            if self._homeward.is_waiting(payload):
                waiting.append(Waiting(victim[1], payload))
            else:
                here.append(victim)
        carried, took, replaced = _taken_along(kind, waiting)
        is_done = bool(here) and kind != SCHEDULE
        refusal = None if is_done else self._homeward.refusal(entry, record_id, carried)
        if is_done or refusal is not None:  # what waits goes on without it
            own = (
                self._settler.control(_FATES[kind], offset, record_id)
                if refusal is None
                else self._settler.dead_letter(offset, original, *refusal)
            )
            parts = [self._homeward.go_on(one, now_ms, offset + 1) for one in waiting]
            parts.append(_one(own))
        else:
            parts = [
                _one(self._settler.cancelled(outcome.REPLACED, one, record_id, offset))
                for one in replaced
            ]
            parts.append(self._homeward.leave(entry, record_id, carried, took, now_ms))
        sent: list[Output] = []
        if not _took_all(parts, sent):
            return None
        # The last to be asked, for what it fires may be in flight from then on.
        told = self._settle_victims(entry, record_id, None, here, now_ms, pending_at)
        if told is None:
            return None
        return [*told, *self._flying(sent, record_id, offset + 1)]

    def _flying(self, outputs: list[Output], record_id: bytes | None, base: int) -> list[Output]:
        """Note the copies among these as in flight from now on (rule 14)."""
        if record_id is not None and any(one[0] in outcome.COPIES for one in outputs):
            self._in_flight_staged.add(record_id, base)
        return outputs

    def _settle(
        self, offset: int, key_ms: int, payload: Payload, now_ms: int, base: int
    ) -> list[Output] | None:
        """All outputs that settle a record whose key has come, or the dead letter of one that may
        have been settled by what this node has never read; None: it has to wait.
        """
        if self._is_doubtful(offset, payload):
            return self._undecided(offset, payload, None)
        if self._homeward.is_waiting(payload):
            sent = self._homeward.go_on(Waiting(offset, payload), now_ms, base)
            record_id = None if payload[6] is None else payload[6][0]
            return None if sent is None else self._flying(sent, record_id, base)
        output = self._settler.settle(offset, key_ms, payload, now_ms, base)
        if output is None:
            return None
        return self._with_following(output, offset, payload, now_ms, base)

    def _undecided(self, offset: int, payload: Payload, by: int | None) -> list[Output] | None:
        if self._homeward.is_waiting(payload):
            return self._homeward.refused(Waiting(offset, payload), *doubt(by))
        return _one(self._settler.undecided(offset, payload, by))

    def _awaits_copy(self, record_id: bytes, offset: int) -> bool:
        """Return whether an own roll of this id is not ingested yet; its offset must be known to be
        settled.
        """
        return self._in_flight.has(record_id, offset) or self._in_flight_staged.has(
            record_id, offset
        )

    def _pending_victims(self, offset: int, k: Key) -> list[Key]:
        """Everything pending that the user record at ``offset`` hits (rule 8)."""
        victims = self._victims.get(offset, ())
        return [victim for victim in victims if victim[1] >= offset or victim > k]

    def _settle_victims(
        self,
        entry: Entry,
        record_id: bytes,
        source: bytes | None,
        victims: Sequence[Key],
        now_ms: int,
        pending_at: PendingAt,
    ) -> list[Output] | None:
        """Return the outputs of those that a user record hits; None: one of them has to wait.
        ``source``: where the user record was written, if it has come home.
        """
        offset, kind, _, _, _, extra = entry
        kind = extra[0] if kind == HOMEBOUND else kind
        if kind == FIRE:
            return self._fire_victims(offset, victims, now_ms, pending_at)
        told = [
            self._settler.cancelled(_FATES[kind], victim[1], record_id, offset, source)
            for victim in victims
        ]
        outputs: list[Output] = []
        return outputs if _took(told, outputs) else None

    def _fire_victims(
        self, offset: int, victims: Sequence[Key], now_ms: int, pending_at: PendingAt
    ) -> list[Output] | None:
        """Deliver now what the fire at ``offset`` hits; None: one of them has to wait."""
        fired: list[tuple[Output, int, Payload]] = []
        for victim in victims:
            found = self._content(victim, pending_at)
            payload = self._settler.pending_occurrence(victim[1], found)
            if self._is_doubtful(victim[1], payload):
                output = self._settler.undecided(victim[1], payload, None)
            else:
                output = self._settler.fire(victim[1], payload, now_ms, offset)
            if output is None:
                return None
            fired.append((output, victim[1], payload))
        outputs: list[Output] = []
        for output, victim_offset, payload in fired:
            outputs += self._with_following(output, victim_offset, payload, now_ms, offset + 1)
        return outputs

    def _is_doubtful(self, offset: int, payload: Payload) -> bool:
        """Return whether a record may have been settled by what this node has never read."""
        meta = payload[6]
        if not self.doubts or meta is None or meta[0] is None:
            return False
        is_copy = self._settler.is_copy(offset, meta)
        return any(gap.concerns(offset, is_copy=is_copy) for gap in self.doubts)

    def _queued(self, offset: int) -> Payload | None:
        """Return what H has yet to pass at an offset: a copy that came back late is in no store."""
        at = bisect_left(self._queue, offset, key=itemgetter(0))
        if at == len(self._queue) or self._queue[at][0] != offset or self._queue[at][1] > COPY:
            return None
        payload: Payload = self._queue[at][4]
        return payload

    def _content(self, victim: Key, pending_at: PendingAt) -> Payload:
        """Return what is pending at a key."""
        queued = self._queued(victim[1])
        if queued is not None:
            return queued
        self._reads += 1
        return pending_at(victim)

    def _with_following(
        self, output: Output, offset: int, payload: Payload, now_ms: int, base: int
    ) -> list[Output]:
        """The output that settles ``offset``, and the next occurrence of what recurs; copies among
        them are in flight from now on (rule 14).
        """
        meta = payload[6]
        if meta is None:
            return [output]
        outputs = [output]
        if recurs(meta):
            again = self._settler.following(output, offset, payload, now_ms, base)
            outputs += [] if again is None else [again]
        self._flying(outputs, meta[0], base)
        return outputs

    @property
    def may_advance_key(self) -> bool:
        """Return whether the walk of K may go on. It does not wait for H, but after an abort it
        waits for what H had passed before: some of that was forgotten, as K had not passed it. And
        it waits for H to skip what the log has lost: what is stored of that would be late when H
        gets there, and can't be walked.
        """
        return self.stored >= self.staged.offset >= max(self._rewalk, self._log_start)

    def key_limit_ms(self, now_ms: int, unwalked_ms: int | None) -> int:
        """Return up to which due time K may go: now, or the append time of the first record that H
        has not passed, ``unwalked_ms``, so that a cancel which was written before the due time
        wins; but K waits ``_HOLD_BACK_MS`` for that at most.
        """
        if unwalked_ms is None or now_ms - unwalked_ms >= _HOLD_BACK_MS:
            return now_ms
        return min(now_ms, unwalked_ms)

    @property
    def is_walked(self) -> bool:
        """Return whether H has passed all that was read."""
        return self.staged.offset >= self.read

    @property
    def _waits(self) -> bool:
        return bool(self._in_flight or self._in_flight_staged)

    def advance_key(self, frames: Sequence[Frame], now_ms: int) -> list[Output]:
        """Settle frames in key order, H fixed (rule 10). ``frames`` are what the store holds above
        ``staged.key`` with ``key_ms <= now_ms``; K becomes the last settled key, never the clock.
        """
        outputs: list[Output] = []
        k, h = self.staged
        settle = self._settler.settle
        add = outputs.append
        self.is_held = False
        for key_ms, offset, mark, data in frames:
            if offset >= h:
                continue
            if not 0 <= mark < h:
                payload = decode_payload(data)
                if payload[6] is None:
                    output = settle(offset, key_ms, payload, now_ms, h)
                    if output is None:
                        self.is_held = True
                        break
                    add(output)
                else:
                    told = self._settle(offset, key_ms, payload, now_ms, h)
                    if told is None:
                        self.is_held = True
                        break
                    outputs += told
            k = (key_ms, offset)
        self.staged = Cursor(k, h)
        return outputs

    # --- commit --------------------------------------------------------------------------------

    @property
    def is_filling(self) -> bool:
        """Return whether a commit is wanted soon, although it may carry nothing but the cursor.
        That is when half of the queue's room is taken: a commit lets go of what H has passed.
        """
        return bool(self._passed) and (
            2 * (len(self._queue) + len(self._passed)) > self._queue_max
            or 2 * self._queue_bytes > self._queue_bytes_max
        )

    @property
    def is_staged(self) -> bool:
        """Return whether a commit would move the cursor."""
        return self.staged != self.committed

    def commit(self) -> None:
        """The transaction that carried the staged cursor is committed."""
        self._in_flight.update(self._in_flight_staged)
        self._in_flight_staged.clear()
        for entry in self._passed:
            self._victims.pop(entry[0], None)
            self._x_of_copies.pop(entry[0], None)
        self._passed.clear()
        self._queue_bytes = _content_bytes(self._queue)
        self.committed = self.staged

    def abort(self) -> None:
        """The transaction was aborted for certain: settle the same again.

        What H has passed comes back into the queue, but for plain records that were pending then
        and were forgotten. They still are, as long as K stays where it is: so K waits until H has
        walked as far as before.
        """
        self._in_flight_staged.clear()
        self._rewalk = max(self._rewalk, self.staged.offset)
        self.staged = self.committed
        self._queue[:0] = self._passed
        self._passed.clear()


class _Flights:
    """Copies in flight by id: every record that bears one asks whether its own is among them."""

    def __init__(self) -> None:
        self._bases: dict[bytes, set[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._bases)

    def has(self, record_id: bytes, offset: int) -> bool:
        """Return whether one of this id has its base at or below the offset."""
        return any(base <= offset for base in self._bases.get(record_id, ()))

    def add(self, record_id: bytes, base: int) -> None:
        self._bases.setdefault(record_id, set()).add(base)

    def discard(self, record_id: bytes, base: int) -> None:
        bases = self._bases.get(record_id)
        if bases is not None:
            bases.discard(base)
            if not bases:
                del self._bases[record_id]

    def update(self, others: _Flights) -> None:
        for record_id, bases in others._bases.items():  # of its own kind
            self._bases.setdefault(record_id, set()).update(bases)

    def clear(self) -> None:
        self._bases.clear()


def _content_bytes(entries: Iterable[Entry]) -> int:
    """Return about how many bytes of memory queued records take: keys, values and headers."""
    total = 0
    for entry in entries:
        key, value, headers = entry[4][2:5] if entry[1] <= COPY else entry[4]
        total += len(key or b"") + len(value or b"")
        if headers:
            total += sum([len(name) + len(text or b"") for name, text in headers])
    return total


def _taken_along(kind: int, waiting: Sequence[Waiting]) -> tuple[Group, int, list[int]]:
    """Return what goes home before a record of this kind, where that waited, and which of those
    that wait it replaces: a schedule replaces the one just before it at once.
    """
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
    """The same as ``_took_all``, for single outputs."""
    return _took_all([_one(one) for one in told], outputs)


def _took_all(parts: Sequence[list[Output] | None], outputs: list[Output]) -> bool:
    """Add all of these to ``outputs``, or none if one has to wait; return which it was."""
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return False
    for part in found:
        outputs += part
    return True
