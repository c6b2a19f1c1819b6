"""State machine of one shard: records in, ordered settlements out. No I/O and no clock.

The cursor is two-dimensional, ``(K, H)`` (see ``cursor``). The owner advances both in a
deterministic order, so it may stop either at any point:

``advance_offset``  moves H with K fixed: settles controls, invalid records and late records (K has
                    passed their keys) in offset order. Control records take effect only here.
``advance_key``     moves K with H fixed: settles pending records in key order, up to now.

A *level* shard stores nothing: all its records wait equally long, so its log is in due order. There
H alone decides (``advance_in_order``), and K only follows, as the highest key that was settled.

All only *stage*: records are settled by ``commit``, after the transaction with the outputs and the
staged cursor was committed. If it is not, the shard is taken over anew. Rules quoted by number are
those of ``docs/internals/design.md``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from delayservice.contract.codec import decode_payload
from delayservice.contract.entry import CONTROL_EXPIRED, COPY, FIRE, SCHEDULE, Entry, Original
from delayservice.engine.cancels import OffsetAdvance, PendingAt
from delayservice.engine.cursor import NO_MARK, Additions, Cursor, Frame, Key
from delayservice.engine.marking import (
    CopyScan,
    LatestUnmarked,
    RecentNames,
    Scans,
    additions,
    bearing_ids,
    content_bytes,
)
from delayservice.engine.outcome import Output
from delayservice.engine.settle import HasTime, Settler

# K waits no longer until H has passed the records that were written before.
_HOLD_BACK_MS: Final = 250

_NO_CONTENT: Final[Original] = (None, None, [])


class Shard:
    """State of one shard on one node. Not thread-safe.

    ``stored`` is S, the next offset to be stored. ``read`` is the next to be queued for
    ``advance_offset``; ``staged.offset <= read``. ``seen``: the log was read up to here since
    take-over, queued or not, so that requeued records below it are known. ``end`` is L, the end of
    the log at take-over; H does not move until all below it is stored. ``is_held``: the last
    ``advance_key`` stopped at a record that has to wait. Of a level shard, ``stored`` is the end of
    the log, as Kafka stores it.
    """

    def __init__(
        self,
        settler: Settler,
        stored: int,
        queue_max: int = 20_000,
        queue_bytes_max: int = 32 << 20,
        *,
        is_level: bool = False,
        names: RecentNames | None = None,
    ) -> None:
        self._settler = settler
        self.walk = OffsetAdvance(settler)
        self._queue_max = queue_max
        self._queue_bytes_max = queue_bytes_max
        self._is_level = is_level
        self._queue_bytes = 0
        # (end offset, bytes) of each batch in the queue, dropped once H has passed all of it.
        self._batches: deque[tuple[int, int]] = deque()
        self._names = names or RecentNames()
        self._queue: list[Entry] = []
        self._passed: list[Entry] = []
        self.is_held = False
        # H skips the offsets below this one.
        self._log_start = 0
        # By offset, marks of requeued records that are settled with what H skips, and read again.
        self._spared: dict[int, int] = {}
        self.owned = False
        self.stored = stored
        self.read = stored
        self.seen = stored
        self.end = 0
        self.committed = Cursor()
        self.staged = Cursor()

    # --- roles ---------------------------------------------------------------------------------

    def follow(self, cursor: Cursor) -> None:
        """Become or stay a replica, with the newest checkpoint's cursor; drop what is staged."""
        self._forget_walk()
        self.owned = False
        self.committed = self.staged = cursor
        self.reaches(cursor.offset)

    def reaches(self, end: int) -> None:
        """Note that the log ends at ``end`` or above: that of a level shard is its store."""
        if self._is_level:
            self.stored = max(self.stored, end)

    def go_back(self, offset: int) -> None:
        """Lower H of a level shard: the truncated log holds other records there now."""
        self.committed = self.staged = Cursor(self.committed.key, offset)
        self.read = offset

    def take_over(
        self,
        cursor: Cursor,
        marked: Iterable[tuple[int, Key]],
        end: int,
        log_start: int = 0,
        sighted: Iterable[tuple[int, Key]] = (),
        lost_below: int = 0,
    ) -> None:
        """Become the owner from ``cursor`` on (rule 7), both read after the old owner was
        fenced. H skips the offsets below ``log_start``; what a record there was to cancel,
        replace or fire is delivered. ``marked``, ``sighted``: marks and sightings that H has not
        passed yet. ``end``: L. ``lost_below``: end of the last offsets that any owner skipped.
        """
        self._forget_walk()
        self._names.forget_below(lost_below)  # what nobody walked has settled nothing
        self.owned = True
        self.committed = self.staged = cursor
        self.read = self.seen = max(cursor.offset, log_start)
        self.end = end
        if self._is_level:
            self.stored = max(end, self.read)
        self._log_start = log_start
        self.walk.mark(marked)
        expired = sorted(mark for mark in self.walk.victims if mark < log_start)
        self._spared = {
            offset: mark
            for mark in expired
            for _, offset in self.walk.victims[mark]
            if offset >= log_start
        }
        self._queue += [
            (mark, CONTROL_EXPIRED, 0, None, _NO_CONTENT, log_start) for mark in expired
        ]
        self.walk.mark(sighted)

    def _forget_walk(self) -> None:
        self.walk.forget()
        self._spared = {}
        self._queue.clear()
        self._passed.clear()
        self._batches.clear()
        self._queue_bytes = 0

    # --- poll and store ------------------------------------------------------------------------

    # It is below S if stored records have to be read again, after a take-over or as the queue had
    # no room.
    @property
    def wanted(self) -> int:
        if not self.owned:
            return self.stored
        if self.seen < min(self.end, self.stored):
            return self.seen
        if self.read < self.stored and self.has_room:
            return self.read
        return self.stored

    # ``advance_offset`` may settle (rules 7, 14): all up to L is stored, and was read by this
    # owner, so that it knows requeued records with keys below K, which the store lacks.
    @property
    def caught_up(self) -> bool:
        return self.stored >= self.end and self.seen >= self.end

    # The log has to be read up to this offset before H goes on; 0: there is nothing to wait for.
    @property
    def awaited_end(self) -> int:
        if not self.owned:
            return 0
        if not self.caught_up:
            return self.end
        return self.stored if self.wanted < self.stored else 0

    # Records that do not fit in the queue are read again later.
    @property
    def has_room(self) -> bool:
        held = len(self._queue) + len(self._passed)
        return held < self._queue_max and self._queue_bytes < self._queue_bytes_max

    # False while H waits for L, or for a record that this node requeued to be read back.
    @property
    def is_full(self) -> bool:
        return self.owned and self.caught_up and not self.has_room and not self.walk.waits

    def scans_needed(self, start: int, entries: Sequence[Entry], stop: int) -> list[CopyScan]:
        """Return the searches of the log whose results ``ingest`` needs; usually none."""
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
        """Process the records at ``[start, stop)``, read from ``wanted``; return what must be
        stored at once. ``entries`` may be empty: transaction markers have offsets. ``scanned``:
        results of ``scans_needed``.
        """
        named = bearing_ids(entries)
        scans = self._resolve(named, scanned)
        added = Additions()
        if stop > self.stored:
            fresh = entries if start >= self.stored else [e for e in entries if e[0] >= self.stored]
            added = additions(fresh, self.committed.key, latest_unmarked, scans)
        if self.owned:
            self.walk.note_absent(named, scans, self.committed.offset)
            self._queue_for_walk(start, entries, stop, scans, added)
        self.stored = max(self.stored, stop)
        if not self.owned:
            self.read = self.stored
        return added

    def _resolve(self, named: Sequence[tuple[bytes, Entry]], scanned: Scans) -> dict[int, int]:
        scans: dict[int, int] = {}
        for record_id, (offset, kind, _, _, _, base) in named:
            if kind != COPY:
                continue
            known = self._names.first(record_id, base, offset)
            x = scanned[offset] if known is None else known
            scans[offset] = self._spared.get(offset, x)
            if offset >= max(self.seen, self.end):  # else seen before, or of an earlier owner
                self.walk.came_back(record_id, base)
        return scans

    def _queue_for_walk(
        self, start: int, entries: Sequence[Entry], stop: int, scans: Scans, added: Additions
    ) -> None:
        walk, here = self.walk, self.committed.offset
        # A mark below H was passed already: the store is filled again.
        walk.mark((mark, (key_ms, o)) for _, key_ms, o, mark in added.marks if mark >= here)
        walk.mark((by, (key_ms, o)) for by, key_ms, o in added.sightings if by >= here)
        if scans:  # in flight: hit when H passes x, wherever its key lies (rule 14)
            xs = [(scans.get(entry[0], NO_MARK), (entry[2], entry[0])) for entry in entries]
            walk.mark((x, key) for x, key in xs if x >= here)
        if start <= self.seen < stop:
            self.seen = stop
        contiguous = start <= self.read < stop
        if contiguous and self.has_room:
            unread = self.read
            queued = entries if start == unread else [e for e in entries if e[0] >= unread]
            self._queue.extend(queued)
            if len(added.frames) == len(queued):  # nearly always; five times as fast
                size = sum([len(frame[3]) for frame in added.frames])
            else:
                size = content_bytes(queued)
            self._batches.append((stop, size))
            self._queue_bytes += size
            walk.canceller_of.update((o, x) for o, x in scans.items() if o >= unread)
            self.read = stop

    # --- settle --------------------------------------------------------------------------------

    def advance_in_order(self, outputs: Sequence[Output], reached: int) -> None:
        """Move H of a level shard to ``reached``, after these outputs of the records before it, and
        K to the highest of their keys.
        """
        key = self.staged.key
        if outputs:
            key = max(key, (max([output[6] for output in outputs]), outputs[-1][7]))
        self.staged = Cursor(key, reached)

    def advance_offset(
        self, now_ms: int, limit: int, pending_at: PendingAt, has_time: HasTime = lambda: True
    ) -> list[Output]:
        """Move H with K fixed (rules 8 and 9); return about ``limit`` outputs. ``pending_at`` reads
        fired records; after the first, only while ``has_time`` returns True.

        H stops at a late record that is not due (the clock stepped back), at a canceller of a
        requeued record not read back yet (rule 14), and at a record whose output can't be written
        now. Unless ``caught_up``, it only passes offsets that the log has lost.
        """
        outputs: list[Output] = []
        is_caught_up = self.caught_up
        if not is_caught_up and self.staged.offset >= self._log_start:
            return outputs
        queue, passed, walk = self._queue, self._passed, self.walk
        walk.begin(queue, pending_at)
        k = self.staged.key
        k_ms = k[0]
        walked = 0
        log_start = self._log_start
        for entry in queue if is_caught_up else [e for e in queue if e[0] < log_start]:
            # Plain pending records, nearly all, are only passed and dropped here, so that the next
            # batch reuses their memory while it is in the cache (bench whole).
            if entry[2] <= k_ms or entry[1] != SCHEDULE or entry[3] is not None:
                if entry[1] >= FIRE and walk.reads and not has_time():
                    break
                if len(outputs) >= limit:
                    break
                before = len(outputs)
                if not walk.take(entry, k, now_ms, outputs):
                    break
                self._settler.targets.reserve(outputs[before:])
                passed.append(entry)
            walked += 1
        reached = queue[walked][0] if walked < len(queue) else self.read
        if not is_caught_up:
            reached = min(reached, log_start)
        del queue[:walked]
        self.staged = Cursor(k, reached)
        return outputs

    # All below H are stored, and H has passed the lost part of the log, of which stored records
    # would be late otherwise.
    @property
    def may_advance_key(self) -> bool:
        return self.stored >= self.staged.offset >= self._log_start

    def key_limit_ms(self, now_ms: int, unwalked_ms: int | None) -> int:
        """Return up to which key time K may move, epoch ms: now, or earlier the append time of
        the first record that H has not passed, so that a cancel written in time takes effect. K
        waits at most 250 ms.
        """
        if unwalked_ms is None or now_ms - unwalked_ms >= _HOLD_BACK_MS:
            return now_ms
        return min(now_ms, unwalked_ms)

    @property
    def is_walked(self) -> bool:
        return self._is_level or self.staged.offset >= self.read

    def advance_key(self, frames: Sequence[Frame], now_ms: int) -> list[Output]:
        """Move K with H fixed (rule 10); return the outputs. ``frames``: the store's records
        above ``staged.key`` up to ``now_ms``, in key order.
        """
        outputs: list[Output] = []
        k, h = self.staged
        settle, targets = self._settler.settle, self._settler.targets
        small = targets.small
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
                    if output[1] in small:
                        targets.reserve([output])
                else:
                    told = self.walk.settle(offset, key_ms, payload, now_ms, h)
                    if told is None:
                        self.is_held = True
                        break
                    outputs += told
                    targets.reserve(told)
            k = (key_ms, offset)
        self.staged = Cursor(k, h)
        return outputs

    # --- commit --------------------------------------------------------------------------------

    # True if over half of the queue is used, and a commit would free some of it.
    @property
    def is_filling(self) -> bool:
        return bool(self._passed) and (
            2 * (len(self._queue) + len(self._passed)) > self._queue_max
            or 2 * self._queue_bytes > self._queue_bytes_max
        )

    @property
    def is_staged(self) -> bool:
        return self.staged != self.committed

    def commit(self) -> None:
        self.walk.commit(self._passed)
        self._passed.clear()
        self.committed = self.staged
        batches, h = self._batches, self.committed.offset
        while batches and batches[0][0] <= h:
            self._queue_bytes -= batches.popleft()[1]
