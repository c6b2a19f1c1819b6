"""The near window: slots close to the hand, in memory in key order, bounded in bytes.

A window is a stretch of one slot: all its rows with ``after < key <= upper`` (no upper: to the
slot's end). A slot larger than the budget is loaded stretch by stretch, skipping the blocks whose
headers lie outside of it, so that a slot with a million records costs no more memory than any.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import itemgetter
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
    seed_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from delayservice.store.files import Files
    from delayservice.store.wheel.slots import Slot

ROW_BYTES = 200
"""What a row costs in memory beside its payload: a tuple, three integers, a bytes header."""

_WHOLE_FILE_BYTES = 1 << 20
_payload_of = itemgetter(3)


def cost_of(rows: Sequence[Frame]) -> int:
    """Bytes of memory that rows take, near enough for a budget."""
    return sum(map(len, map(_payload_of, rows))) + ROW_BYTES * len(rows)


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


class Window:
    """A stretch of a slot in key order; ``seen`` of the slot's unflushed rows are in it."""

    __slots__ = ("after", "cost", "rows", "seen", "upper")

    def __init__(self, after: Key) -> None:
        self.after = after
        self.upper: Key | None = None
        self.rows: list[Frame] = []
        self.seen = 0
        self.cost = 0

    def covers(self, after: Key) -> bool:
        """Whether rows above ``after`` can be taken from here, or are known not to exist."""
        return self.after <= after and (self.upper is None or after < self.upper)

    def take(self, after: Key, upto_ms: int, limit: int) -> list[Frame]:
        """At most ``limit`` rows above ``after`` and due by ``upto_ms``."""
        rows = self.rows
        start = position_after(rows, after)
        stop = position_after(rows, (upto_ms, OFFSET_MAX))
        return rows[start : min(stop, start + limit)]

    def add(self, rows: Sequence[Frame], budget: int) -> None:
        """Take in those rows that belong to this stretch; cut it when it outgrows the budget."""
        upper = self.upper
        rows = [row for row in rows if self.after < row[:2] and (upper is None or row[:2] <= upper)]
        if rows:
            self.rows = collapse(sorted([*self.rows, *rows]))
            self.cost += cost_of(rows)
            self.cut(2 * budget, budget)

    def drop_upto(self, key: Key) -> None:
        """Forget rows up to ``key``; they are asked for again only after a take-over."""
        if key > self.after:
            gone = position_after(self.rows, key)
            self.cost -= cost_of(self.rows[:gone])
            self.rows = self.rows[gone:]
            self.after = key

    def cut(self, cost_max: int, cost_kept: int) -> None:
        """When above ``cost_max``, keep the lowest rows worth ``cost_kept`` and lower ``upper``."""
        if self.cost <= cost_max or len(self.rows) <= 1:
            return
        rows = self.rows
        rows.sort()
        cost = stop = 0
        while stop < len(rows) and (cost <= cost_kept or rows[stop][:2] == rows[stop - 1][:2]):
            cost += len(rows[stop][3]) + ROW_BYTES
            stop += 1
        if stop < len(rows):
            del rows[stop:]
            self.cost = cost
            self.upper = rows[-1][:2]


def load_window(files: Files, path: str, slot: Slot, after: Key, budget: int) -> Window:
    """Read the stretch of a slot that begins above ``after``.

    Raises:
        BlockDamagedError, OSError: the file is damaged or missing.
    """
    window = Window(after)
    blocks, whole = _read_headers(files, path, slot)
    for block in sorted(blocks, key=itemgetter(4)):
        if block.last <= after or (window.upper is not None and block.first > window.upper):
            continue
        start = block.position + HEADER_BYTES
        body = whole[start : block.end] if whole else files.read_at(path, start, block.length)
        _keep(window, decode_block(slot.second, block, body), budget)
    _keep(window, sorted(slot.rows), budget)
    window.seen = len(slot.rows)
    window.rows.sort()
    window.rows = collapse(window.rows)
    return window


def _keep(window: Window, rows: list[Frame], budget: int) -> None:
    start = position_after(rows, window.after)
    stop = len(rows) if window.upper is None else position_after(rows, window.upper)
    if stop - start != len(rows):
        rows = rows[start:stop]
    window.rows += rows
    window.cost += cost_of(rows)
    window.cut(2 * budget, budget)


def _read_headers(files: Files, path: str, slot: Slot) -> tuple[list[Block], bytes]:
    """Blocks of a slot file, and its content if that is small enough to be read at once."""
    whole = files.read_at(path, 0, slot.size) if 0 < slot.size <= _WHOLE_FILE_BYTES else b""
    blocks: list[Block] = []
    position, crc = 0, seed_of(slot.second, slot.width)
    while position < slot.size:
        if whole:
            data = whole[position : position + HEADER_BYTES]
        else:
            data = files.read_at(path, position, HEADER_BYTES)
        block = parse_header(data, position, crc)
        if block.end > slot.size:
            raise BlockDamagedError(f"the block at byte {position} is cut short")
        blocks.append(block)
        position, crc = block.end, block.crc
    if position != slot.size or crc != slot.crc:
        raise BlockDamagedError(f"the blocks end at byte {position} and not at {slot.size}")
    return blocks, whole
