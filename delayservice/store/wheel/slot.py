"""One slot of the wheel: a stretch of due times, the file of it, and what each shard has there."""

from __future__ import annotations

import time
from array import array
from functools import lru_cache
from typing import Final

from delayservice.store.wheel.block import pack, unpack
from delayservice.store.wheel.horizon import Lost, SlotRow

FOLDER: Final = "slots"


@lru_cache(maxsize=4096)
def file_name(start_ms: int) -> str:
    """Name the file of a slot after its start in UTC: ``2026-11-21T02-00-10.000``."""
    t = time.gmtime(start_ms // 1000)
    day = f"{t.tm_year:04d}-{t.tm_mon:02d}-{t.tm_mday:02d}"
    return f"{day}T{t.tm_hour:02d}-{t.tm_min:02d}-{t.tm_sec:02d}.{start_ms % 1000:03d}"


class Slot:
    """What is stored for keys in ``[start_ms, stop_ms)``.

    Columns by shard number say what is in the file: they are dense, for a thousand shards in 720
    slots are 720,000 cells.

    Attributes:
        start_ms: the start, epoch milliseconds.
        stop_ms: the exclusive end.
        size: bytes of the file.
        counts: records of each shard in the file, lost ones among them.
        firsts: lowest offset of each shard's rows.
        stops: above the highest offset of each shard's rows and marks; 0: it has none.
        floors: positions below which blocks of a shard are of no account.
        lost: by shard number, what is to be read again.
        users: numbers of the shards that have anything here, in the file or in memory.
        waiting: numbers of the shards with rows that are not in the file yet.
        index: positions of blocks by shard number; None: not read from the file yet.
        dirty: written to since the last sync.
    """

    __slots__ = (
        "counts",
        "dirty",
        "firsts",
        "floors",
        "index",
        "lost",
        "size",
        "start_ms",
        "stop_ms",
        "stops",
        "users",
        "waiting",
    )

    def __init__(self, start_ms: int, stop_ms: int) -> None:
        self.start_ms = start_ms
        self.stop_ms = stop_ms
        self.size = 0
        self.counts = array("I")
        self.firsts = array("q")
        self.stops = array("q")
        self.floors: dict[int, int] = {}
        self.lost: dict[int, Lost] = {}
        self.users = 0
        self.waiting: set[int] = set()
        self.index: dict[int, array[int]] | None = {}
        self.dirty = False

    @classmethod
    def of_row(cls, row: SlotRow, slot_ms: int) -> Slot:
        """Make a slot of what the horizon has."""
        slot = cls(row.start_ms, row.start_ms + slot_ms)
        slot.size = row.size
        slot.counts = unpack("I", row.counts)
        slot.firsts, slot.stops = unpack("q", row.firsts), unpack("q", row.stops)
        slot.floors = dict(row.floors)
        slot.lost = {lost.shard: lost for lost in row.lost}
        slot.index = None if slot.size else {}
        return slot

    def row(self) -> SlotRow:
        """Return what the horizon is to say."""
        columns = pack("I", self.counts), pack("q", self.firsts), pack("q", self.stops)
        return SlotRow(
            self.start_ms, self.size, *columns, dict(self.floors), list(self.lost.values())
        )

    def held_by(self, number: int) -> bool:
        """Return whether the file has rows of a shard, or had some that are lost."""
        return number < len(self.stops) and self.stops[number] > 0

    @staticmethod
    def put(index: dict[int, array[int]], number: int, position: int) -> None:
        """Add the position of a block to an index."""
        positions = index.get(number)
        if positions is None:
            positions = index[number] = array("q")
        positions.append(position)

    def note(self, number: int, count: int, first: int, stop: int) -> None:
        """Note rows of a shard: ``count`` records, of offsets ``[first, stop)``."""
        more = number + 1 - len(self.stops)
        if more > 0:
            for column in (self.counts, self.firsts, self.stops):
                column.frombytes(bytes(more * column.itemsize))
        if self.stops[number]:
            first, stop = min(first, self.firsts[number]), max(stop, self.stops[number])
        self.firsts[number], self.stops[number] = first, stop
        self.counts[number] += count

    def clear(self, number: int) -> None:
        """Forget what a shard has in the file; its blocks count until a floor or a newer generation
        says otherwise.
        """
        if number < len(self.stops):
            self.counts[number] = self.firsts[number] = self.stops[number] = 0
        self.lost.pop(number, None)
        self.floors.pop(number, None)
        if self.index is not None:
            self.index.pop(number, None)

    def void(self, number: int) -> None:
        """Forget what a shard has in the file, for good."""
        self.clear(number)
        self._raise_floor(number)

    def lose(self, number: int) -> None:
        """Note that what a shard has in the file is to be read again."""
        first, stop, count = self.firsts[number], self.stops[number], self.counts[number]
        self.lost[number] = Lost(number, self.start_ms, first, stop, count)
        self._raise_floor(number)

    def _raise_floor(self, number: int) -> None:
        if self.size:
            self.floors[number] = self.size
        if self.index is not None:
            self.index.pop(number, None)
