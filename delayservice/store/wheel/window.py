"""Window: the rows (records and marks) of a shard in a key range of one slot, in memory and in key
order.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from delayservice.contract.entry import OFFSET_MAX
from delayservice.store.base import NO_MARK
from delayservice.store.wheel.block import MARK_ONLY, count_records, sort_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
    """Return the lowest index from ``end`` on at which ``rows`` can be divided without separating
    rows of one key; they are sorted by key.
    """
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
        """Return at most ``limit`` records in key order, with keys above ``after`` and key times up
        to ``upto_ms``, inclusive, in epoch ms.
        """
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
        """Return the number of records with keys up to ``key`` that the window holds, or has
        removed by ``drop_upto``; 0: ``key`` is below the start of the window.
        """
        if key < self.after:
            return 0
        return self._gone + count_records(self._rows[: _position_after(self._rows, key)])

    def add(self, rows: Iterable[Frame]) -> None:
        """Add those of ``rows`` that are in the window's key range. If all rows then take more than
        twice the budget, drop the highest ones.
        """
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
        """Fill an empty window with those rows that are in its key range, one list for each block.
        If they take more than twice the budget, the highest rows are dropped.
        """
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
        """Drop the rows up to ``key``, inclusive, if they are more than half of the window. They
        were read already; only a take-over reads them again.
        """
        if key <= self.after:
            return
        rows = self._rows
        gone = _position_after(rows, key)
        if 2 * gone > len(rows):
            self._gone += count_records(rows[:gone])
            self.cost -= cost_of(rows[:gone])
            del rows[:gone]
            self.after = key
