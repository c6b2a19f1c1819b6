"""Windows: rows of the next slots in memory, in key order, with one bound of memory for all shards
of a worker.

A window holds the rows (records and marks) of one shard in one slot, or in part of a slot. A slot
that fits into memory is one window. A larger slot is read window by window; the end of each is
estimated from the headers of its blocks. Rows that are appended later are added to the window that
they belong to. The generation is the number of a shard's store, by which its rows are found in a
block.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from delayservice.base.errors import SlotDamagedError
from delayservice.contract.entry import OFFSET_MAX
from delayservice.store.base import NO_MARK
from delayservice.store.wheel.block import MARK_ONLY, Block, count_records, sort_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from delayservice.engine.cursor import Key
    from delayservice.store.base import Frame


# Memory of a row besides its payload, in bytes: a tuple, three integers, a bytes header.
ROW_BYTES: Final = 200


_INSERTED_MAX: Final = 64
_payload_of = itemgetter(3)


def cost_of(rows: Sequence[Frame]) -> int:
    return sum(map(len, map(_payload_of, rows))) + ROW_BYTES * len(rows)


def collapse(rows: list[Frame]) -> list[Frame]:
    """Return the records among ``rows``, each once and with its mark, in key order. ``rows`` are
    sorted by key; marks without a record are left out.

    A row that is only a mark has the key of its record, so a limit never separates the two
    (``group_end``).
    """
    if len({row[1] for row in rows}) == len(rows) and not any(
        [row[3] is MARK_ONLY for row in rows]  # noqa: C419 - a generator takes twice as long
    ):
        return rows
    records: dict[int, Frame] = {}
    marks: dict[int, int] = {}
    for row in rows:
        _, offset, mark, payload = row
        if mark != NO_MARK:
            marks[offset] = mark
        if payload is not MARK_ONLY:
            records.setdefault(offset, row)
    return [
        (key_ms, offset, marks.get(offset, NO_MARK), payload)
        for key_ms, offset, _, payload in records.values()
    ]


def _position_after(rows: Sequence[Frame], key: Key) -> int:
    # A tuple sorts before a longer one with the same beginning, so no key function is needed.
    return bisect_left(rows, (key[0], key[1] + 1))


def group_end(rows: Sequence[Frame], end: int) -> int:
    """Return the lowest index from ``end`` on that separates no rows of one key."""
    while 0 < end < len(rows) and rows[end][:2] == rows[end - 1][:2]:
        end += 1
    return end


class Window:
    """Rows (records and marks) of a shard in one slot, or in a key range of it, in memory and in
    key order.

    Args:
        start_ms: the slot's start, epoch milliseconds.
        after: key above which the window begins.
        budget: memory for the rows, in bytes; the highest are dropped beyond twice as much.
    """

    __slots__ = ("_gone", "_rows", "after", "budget", "cost", "counted", "cut", "seen", "start_ms")

    def __init__(self, start_ms: int, after: Key, budget: int) -> None:
        self.start_ms = start_ms
        self.after = after
        self.budget = budget
        # Key up to which the window has all rows; None: it has all rows of the slot above
        # ``after``.
        self.cut: Key | None = None
        # Number of the slot's rows not in a file yet that were passed to ``add`` so far.
        self.seen = 0
        # Memory of the rows, in bytes.
        self.cost = 0
        # Bytes of its memory that are counted in ``WindowCache.cost``, the memory of all windows.
        self.counted = 0
        self._rows: list[Frame] = []
        self._gone = 0

    def covers(self, after: Key) -> bool:
        """Return whether the first rows above key ``after`` are in this window, if they exist."""
        return self.after <= after and (self.cut is None or after < self.cut)

    def take(self, after: Key, upto_ms: int, limit: int) -> list[Frame]:
        """Return records as ``Store.read_due``."""
        rows = self._rows
        at = _position_after(rows, after)
        stop = _position_after(rows, (upto_ms, OFFSET_MAX))
        found: list[Frame] = []
        while at < stop and len(found) < limit:
            end = group_end(rows, min(stop, at + limit - len(found)))
            found += collapse(rows[at:end])
            at = end
        return found

    def passed(self, key: Key) -> int:
        """Return the number of records up to ``key`` that the window holds or has passed; 0: it
        begins later.
        """
        if key < self.after:
            return 0
        return self._gone + count_records(self._rows[: _position_after(self._rows, key)])

    def add(self, rows: Iterable[Frame]) -> None:
        # The highest rows are dropped if all take more than twice the budget.
        after, cut = self.after, self.cut
        mine = [row for row in rows if after < row[:2] and (cut is None or row[:2] <= cut)]
        if mine:
            if len(mine) <= _INSERTED_MAX:
                for row in mine:
                    insort(self._rows, row)
            else:
                self._rows += mine
                self._rows.sort()
            self.cost += cost_of(mine)
            if self.cost > 2 * self.budget:
                self._cut()

    def load(self, runs: Iterable[list[Frame]]) -> None:
        """Fill an empty window with the rows in its key range; ``runs``: those of each block."""
        rows, cost = self._rows, 0
        for run in runs:
            cost += cost_of(run)
            rows += run
            if cost > 2 * self.budget:
                self._settle()
                self._cut()
                rows, cost = self._rows, self.cost
        self._settle()

    def _settle(self) -> None:
        after, cut = self.after, self.cut
        rows = [r for r in self._rows if after < r[:2] and (cut is None or r[:2] <= cut)]
        self._rows = sort_rows(rows)
        self.cost = cost_of(self._rows)

    def _cut(self) -> None:
        # Drops the highest rows beyond the budget.
        rows = self._rows
        cost = stop = 0
        while stop < len(rows) and cost <= self.budget:
            cost += len(rows[stop][3]) + ROW_BYTES
            stop += 1
        stop = group_end(rows, stop)
        if stop < len(rows):
            del rows[stop:]
            self.cost = cost_of(rows)
            self.cut = rows[-1][:2]

    def end_with(self, key: Key) -> None:
        if self.cut is None or self.cut > key:
            self.cut = key
            self._settle()

    def drop_upto(self, key: Key) -> None:
        # They were read already; only a take-over reads them again.
        if key <= self.after:
            return
        rows = self._rows
        gone = _position_after(rows, key)
        if 2 * gone > len(rows):
            self._gone += count_records(rows[:gone])
            self.cost -= cost_of(rows[:gone])
            del rows[:gone]
            self.after = key


_STRETCH_BYTES_MIN: Final = 64 << 10
_SHARES: Final = 4
_SAMPLES: Final = 512
_PRELOAD_MS: Final = 1_000


class WindowCache:
    """Bound of the memory of all windows of a worker, in bytes; drops those used least recently."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._hands: OrderedDict[Window, DueReader] = OrderedDict()
        # Bytes of memory that the windows take.
        self.cost = 0

    @property
    def share(self) -> int:
        """Memory that a new window may take, in bytes."""
        share = self._bytes_max // max(_SHARES, 2 * len(self._hands))
        return max(share, min(_STRETCH_BYTES_MIN, self._bytes_max // _SHARES))

    @property
    def has_room(self) -> bool:
        """Whether a window may be loaded before it is needed."""
        return 2 * self.cost <= self._bytes_max

    def admit(self, window: Window, hand: DueReader) -> None:
        # The windows used least recently are dropped until all fit.
        self._hands[window] = hand
        self.count(window)
        while self.cost > self._bytes_max and len(self._hands) > 1:
            oldest = next(iter(self._hands))
            self._hands[oldest].forget(oldest.start_ms)

    def use(self, window: Window) -> None:
        self._hands.move_to_end(window)

    def count(self, window: Window) -> None:
        self.cost += window.cost - window.counted
        window.counted = window.cost

    def forget(self, window: Window) -> None:
        del self._hands[window]
        self.cost -= window.counted


def stretch_end_ms(costs: Sequence[tuple[int, int, int]], stop_ms: int, window: Window) -> int:
    """Return the key time, epoch ms, inclusive, up to which the rows from a window's start on fit
    into its memory. It is an estimate: the rows of a block are taken as spread evenly.

    Args:
        costs: of each block: its first key time, one above its last (epoch milliseconds), and the
            memory of its rows in bytes.
        stop_ms: exclusive end of the slot, epoch milliseconds; returned if all rows fit.
        window: the window, with its start and its memory in bytes (``budget``).
    """
    after_ms = window.after[0]
    low = after_ms + 1  # so that there is progress whatever the budget
    high = max([last for _, last, _ in costs], default=0)
    sample = costs[:: 1 + len(costs) // _SAMPLES]
    share = window.budget * len(sample) / max(len(costs), 1)

    def cost_upto(ms: int) -> float:
        return sum(
            cost * (min(last, ms) - max(first, after_ms)) / (last - first)
            for first, last, cost in sample
            if min(last, ms) > max(first, after_ms)
        )

    if high <= low or cost_upto(high) <= share:
        return stop_ms
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost_upto(middle) <= share else (low, middle)
    return low


def read_stretch(
    read: Callable[[Block, int, int, int], list[Frame]],
    stop_ms: int,
    blocks: Sequence[Block],
    generation: int,
    window: Window,
) -> None:
    """Fill an empty window with rows of one shard from a slot's file, as many as fit into its
    memory. ``read``: function ``(block, generation, after_ms, upto_ms)`` that returns the rows of a
    shard in a block, from a first to a last key time, both inclusive.
    """
    after_ms = window.after[0]
    blocks = [block for block in blocks if block.last_ms >= after_ms]
    costs = [(b.first_ms, b.last_ms + 1, _cost_within(b, generation)) for b in blocks]
    upto_ms = stop_ms
    if sum([cost for _, _, cost in costs]) > window.budget:
        upto_ms = stretch_end_ms(costs, stop_ms, window)
    if upto_ms < stop_ms:
        window.cut = (upto_ms, OFFSET_MAX)
    window.load(
        read(block, generation, after_ms, upto_ms) for block in blocks if block.first_ms <= upto_ms
    )


def _cost_within(block: Block, generation: int) -> int:
    start, stop = block.run(generation)
    return block.bytes_of(stop - start) + ROW_BYTES * (stop - start)


class DueReader:
    """Reader of a shard's due rows (records with marks) in key order, through windows in memory.

    Args:
        starts: start times of the slots in which the shard has rows, sorted, epoch milliseconds.
        waiting: rows of the shard that are not in a file yet, by the start of their slot.
        load: function ``(start_ms, after)`` that returns a window of the slot at ``start_ms``, with
            the rows above key ``after``; may raise ``SlotDamagedError``.
    """

    def __init__(
        self,
        starts: list[int],
        slot_ms: int,
        waiting: dict[int, list[Frame]],
        load: Callable[[int, Key], Window],
        cache: WindowCache,
    ) -> None:
        self._starts = starts
        self._slot_ms = slot_ms
        self._waiting = waiting
        self._load = load
        self._cache = cache
        self._windows: dict[int, Window] = {}

    def read(self, after: Key, upto_ms: int, limit: int) -> list[Frame]:
        """Return records as ``Store.read_due``. Windows are loaded as needed, and those of slots
        before that of ``after`` are dropped. Records before a damaged slot are returned without an
        error.
        """
        self._forget_before(after[0])
        found: list[Frame] = []
        at = self._first(after[0])
        while at < len(self._starts) and self._starts[at] <= upto_ms:
            try:
                window = self._window(self._starts[at], after)
            except SlotDamagedError:
                if found:
                    return found  # these are good; the next call meets the damage again
                raise
            found += window.take(after, upto_ms, limit - len(found))
            if len(found) >= limit:
                break
            if window.cut is None:
                at += 1
            elif window.cut >= (upto_ms, OFFSET_MAX):  # damage behind it is not asked for
                break
            else:
                after = max(after, window.cut)  # a giant slot: read its next window
        return found

    def _first(self, ms: int) -> int:
        return bisect_right(self._starts, ms - self._slot_ms)

    def next_due_ms(self, after: Key) -> int | None:
        # Not in memory: the start of the slot, or of the part of the slot that is not in memory.
        for at in range(self._first(after[0]), len(self._starts)):
            start_ms = self._starts[at]
            start = max(after, (start_ms, -1))
            window = self._windows.get(start_ms)
            if window is None or not window.covers(start):
                return start[0]
            self._refresh(window)
            first = window.take(start, OFFSET_MAX, 1)
            if first:
                return first[0][0]
            if window.cut is not None:
                return max(window.cut[0], start[0])
        return None

    def preload(self, ms: int) -> None:
        """Load a window of the first slot that begins after ``ms``, epoch milliseconds, so that its
        records are not late. This is done only if the slot begins within a second, and at least
        half of the memory for windows is free. Damage is ignored.
        """
        for start_ms in self._starts[bisect_right(self._starts, ms) :][:1]:
            is_soon = start_ms <= ms + _PRELOAD_MS and start_ms not in self._windows
            if is_soon and self._cache.has_room:
                with suppress(SlotDamagedError):  # raised again when it is due
                    self._window(start_ms, (start_ms, -1))

    def before_flush(self, start_ms: int) -> None:
        # The caller removes the rows from ``waiting`` next, because they are in the file now.
        window = self._windows.get(start_ms)
        if window is not None:
            self._refresh(window)
            window.seen = 0

    def passed(self, start_ms: int, key: Key) -> int:
        """Return the number of records up to ``key`` that the slot's window holds or has passed."""
        window = self._windows.get(start_ms)
        return 0 if window is None else window.passed(key)

    def forget(self, start_ms: int) -> None:
        window = self._windows.pop(start_ms, None)
        if window is not None:
            self._cache.forget(window)

    def forget_all(self) -> None:
        for start_ms in list(self._windows):
            self.forget(start_ms)

    def _forget_before(self, ms: int) -> None:
        at = self._first(ms)
        least = self._starts[at] if at < len(self._starts) else ms
        for start_ms in [start for start in self._windows if start < least]:
            self.forget(start_ms)

    def _window(self, start_ms: int, after: Key) -> Window:
        start = max(after, (start_ms, -1))
        window = self._windows.get(start_ms)
        if window is not None and window.covers(start):
            window.drop_upto(start)
            self._cache.count(window)
            self._refresh(window)
            if window.covers(start):
                self._cache.use(window)
                return window
        self.forget(start_ms)
        window = self._load(start_ms, start)
        self._windows[start_ms] = window
        self._cache.admit(window, self)
        return window

    def _refresh(self, window: Window) -> None:
        rows = self._waiting.get(window.start_ms, ())
        if window.seen < len(rows):
            window.add(rows[window.seen :])
            window.seen = len(rows)
            self._cache.count(window)
