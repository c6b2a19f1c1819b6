"""The near window: slots close to the hand, in memory in key order, bounded in bytes.

A window is a stretch of one slot: all its rows above ``after`` (and up to ``cut``, if it was cut).
Blocks of the slot's file wait undecoded, in the order of their first keys, until rows up to there
are asked for; so reading a slot with a million records begins as fast as with any, and takes no
more memory than the blocks whose keys overlap. If even those outgrow the budget, the highest rows
are dropped and loaded again later.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

from delayservice.core.cursor import OFFSET_MAX, Key
from delayservice.store.base import NO_MARK, Frame
from delayservice.store.wheel.block import (
    HEADER_BYTES,
    MARK_ONLY,
    Block,
    BlockDamagedError,
    decode_block,
    parse_header,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from delayservice.store.files import Files
    from delayservice.store.wheel.slots import Slot

ROW_BYTES = 200
"""What a row costs in memory beside its payload: a tuple, three integers, a bytes header."""

_WHOLE_FILE_BYTES = 1 << 20
_key_ms_of, _offset_of, _mark_of, _payload_of = map(itemgetter, range(4))
_first_of = attrgetter("first")


def cost_of(rows: Sequence[Frame]) -> int:
    """Bytes of memory that rows take, near enough for a budget."""
    return sum(map(len, map(_payload_of, rows))) + ROW_BYTES * len(rows)


def count_records(rows: Sequence[Frame]) -> int:
    """Rows that are records and not marks only."""
    if max(map(_mark_of, rows), default=NO_MARK) == NO_MARK:
        return len(rows)
    return len(rows) - sum([row[3] is MARK_ONLY for row in rows])


def position_after(rows: Sequence[Frame], key: Key) -> int:
    """Index of the first of the sorted rows that is above ``key``."""
    # A shorter tuple sorts before a longer one that it begins, so no key function is needed.
    return bisect_left(rows, (key[0], key[1] + 1))


def collapse(rows: list[Frame]) -> list[Frame]:
    """Sorted rows with each record once and its mark put to it; marks without a record go."""
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


def sort_rows(rows: Iterable[Frame]) -> list[Frame]:
    """Rows of the log's order in key order.

    Two stable sorts by an integer each, the first of what is sorted already, take a third of the
    time that comparing tuples takes (``tests.store_bench --case burst``).
    """
    found = sorted(rows, key=_offset_of)
    found.sort(key=_key_ms_of)
    return found


def _group_end(rows: Sequence[Frame], end: int) -> int:
    """``end``, or further on, so that no record is parted from its marks, which have its key."""
    while 0 < end < len(rows) and rows[end][:2] == rows[end - 1][:2]:
        end += 1
    return end


class Window:
    """A stretch of a slot in key order; ``seen`` of the slot's unflushed rows are in it.

    Args:
        after: rows above this key are in it.
        blocks: those of the file whose rows are not in it yet.
        budget: bytes of memory for its rows.
    """

    __slots__ = ("after", "blocks", "budget", "cost", "cut", "gone", "rows", "seen")

    def __init__(self, after: Key, blocks: Iterable[Block], budget: int) -> None:
        self.after = after
        self.blocks = sorted((b for b in blocks if b.last > after), key=_first_of, reverse=True)
        """The block with the lowest first key is the last."""
        self.budget = budget
        self.cut: Key | None = None
        self.rows: list[Frame] = []
        self.gone = 0
        """Records that were taken and dropped."""
        self.seen = 0
        self.cost = 0

    @property
    def upper(self) -> Key | None:
        """All rows up to this key are in the window; None: all of the slot's."""
        if not self.blocks:
            return self.cut
        first = self.blocks[-1].first
        below = (first[0], first[1] - 1)
        return below if self.cut is None else min(below, self.cut)

    def covers(self, after: Key) -> bool:
        """Whether rows above ``after`` can be taken from here, or are known not to exist."""
        return self.after <= after and (self.cut is None or after < self.cut)

    def take(self, after: Key, upto_ms: int, limit: int) -> list[Frame]:
        """At most ``limit`` rows above ``after`` and due by ``upto_ms``, up to ``upper``."""
        rows, upper, last = self.rows, self.upper, (upto_ms, OFFSET_MAX)
        at = position_after(rows, after)
        stop = position_after(rows, last if upper is None else min(upper, last))
        found: list[Frame] = []
        while at < stop and len(found) < limit:
            end = _group_end(rows, min(stop, at + limit - len(found)))
            found += collapse(rows[at:end])
            at = end
        return found

    def passed(self, key: Key) -> int:
        """How many records at or below ``key`` it has had."""
        return self.gone + count_records(self.rows[: position_after(self.rows, key)])

    def needs_more(self, found: int, upto_ms: int, limit: int) -> bool:
        """Whether more of what is due by ``upto_ms`` waits in a block."""
        return found < limit and bool(self.blocks) and self.blocks[-1].first[0] <= upto_ms

    def extend(self, limit: int, decode: Callable[[Block], list[Frame]]) -> None:
        """Decode the next blocks, with ``limit`` rows or a little more; with a quarter of what is
        here at least, for all of that is merged with them (``tests.store_bench --case burst``).

        Raises:
            BlockDamagedError, OSError: as ``decode``.
        """
        rows: list[Frame] = []
        limit = max(limit, len(self.rows) // 4)
        while self.blocks and len(rows) < limit:
            rows += decode(self.blocks.pop())
        self.add(rows)

    def add(self, rows: Sequence[Frame]) -> None:
        """Take in those rows that belong to this stretch; cut it when it outgrows the budget."""
        after, cut = self.after, self.cut
        rows = [row for row in rows if after < row[:2] and (cut is None or row[:2] <= cut)]
        self.rows += rows
        self.rows.sort()
        self.cost += cost_of(rows)
        self._cut()

    def drop_upto(self, key: Key) -> None:
        """Forget rows up to ``key``; they are asked for again only after a take-over."""
        if key > self.after:
            gone = position_after(self.rows, key)
            self.cost -= cost_of(self.rows[:gone])
            self.gone += count_records(self.rows[:gone])
            del self.rows[:gone]
            self.after = key

    def _cut(self) -> None:
        """At twice the budget, keep the lowest rows that are worth it."""
        if self.cost <= 2 * self.budget or len(self.rows) <= 1:
            return
        rows = self.rows
        cost = stop = 0
        while stop < len(rows) and cost <= self.budget:
            cost += len(rows[stop][3]) + ROW_BYTES
            stop += 1
        stop = _group_end(rows, stop)
        if stop < len(rows):
            del rows[stop:]
            self.cost = cost
            cut = self.cut = rows[-1][:2]
            self.blocks = [block for block in self.blocks if block.first <= cut]


def load_window(files: Files, path: str, slot: Slot, after: Key, budget: int) -> Window:
    """The stretch of a slot that begins above ``after``.

    Raises:
        BlockDamagedError, OSError: the file is damaged or missing.
    """
    blocks, whole = _read_headers(files, path, slot, min(_WHOLE_FILE_BYTES, budget // 2))
    window = Window(after, blocks, budget)
    window.add(sort_rows(slot.rows))
    window.seen = len(slot.rows)
    if whole:
        window.extend(
            sys.maxsize,
            lambda b: decode_block(slot.second, b, whole[b.position + HEADER_BYTES : b.end]),
        )
    return window


def extend_window(files: Files, path: str, slot: Slot, window: Window, limit: int) -> None:
    """Decode the next blocks of a window.

    Raises:
        BlockDamagedError, OSError: the file is damaged or missing.
    """
    window.extend(
        limit,
        lambda b: decode_block(
            slot.second, b, files.read_at(path, b.position + HEADER_BYTES, b.length)
        ),
    )


def read_blocks(read: Callable[[int, int], bytes], slot: Slot) -> Iterator[Block]:
    """The blocks of a slot's file that have not moved to finer slots, by their headers.

    Args:
        read: bytes of the file, by position and size.
        slot: what the index says of it.

    Raises:
        BlockDamagedError, OSError: the file is damaged or missing; what came before is good.
    """
    position, crc = slot.moved, slot.moved_crc
    while position < slot.size:
        block = parse_header(read(position, HEADER_BYTES), position, crc)
        if block.end > slot.size:
            raise BlockDamagedError(f"the block at byte {position} is cut short")
        yield block
        position, crc = block.end, block.crc
    if position != slot.size or crc != slot.crc:
        raise BlockDamagedError(f"the blocks end at byte {position} and not at {slot.size}")


def _read_headers(
    files: Files, path: str, slot: Slot, whole_bytes_max: int
) -> tuple[list[Block], bytes]:
    """Blocks of a slot file, and its content if that is small enough to be read at once."""
    whole = files.read_at(path, 0, slot.size) if 0 < slot.size <= whole_bytes_max else b""

    def read(position: int, size: int) -> bytes:
        return whole[position : position + size] or files.read_at(path, position, size)

    return list(read_blocks(read, slot)), whole
