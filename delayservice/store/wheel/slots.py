"""Slots of a wheel, with the rows of each shard in memory and in files.

A row is a record, or a mark for an earlier record. It stays in memory until its slot is flushed:
then all such rows of the slot are appended to the slot's file. A file is removed when no shard has
rows in its slot.
"""

from __future__ import annotations

import sys
import time
from array import array
from bisect import bisect_left, insort
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final

import structlog

from delayservice.engine.cursor import START_KEY, Key
from delayservice.store.shards import ShardState
from delayservice.store.wheel.block import (
    Block,
    Body,
    bounds_of,
    count_records,
    encode_blocks,
    pack,
    sort_rows,
    unpack,
    walk_blocks,
)
from delayservice.store.wheel.horizon import LostRows, ShardRow, SlotRow
from delayservice.store.wheel.window import cost_of, read_stretch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from delayservice.store.base import Frame
    from delayservice.store.files import Files
    from delayservice.store.folder import StoreFolder
    from delayservice.store.ids import IdIndex
    from delayservice.store.wheel.window import DueReader, Window

FOLDER: Final = "slots"

# Largest number of slots whose block headers are cached.
_INDEXED_MAX: Final = 64

_PLACE_BITS: Final = 32


@lru_cache(maxsize=4096)
def file_name(start_ms: int) -> str:
    # The slot's start in UTC, as ``2026-11-21T02-00-10.000``.
    t = time.gmtime(start_ms // 1000)
    day = f"{t.tm_year:04d}-{t.tm_mon:02d}-{t.tm_mday:02d}"
    return f"{day}T{t.tm_hour:02d}-{t.tm_min:02d}-{t.tm_sec:02d}.{start_ms % 1000:03d}"


class Index:
    """Block headers of one slot's file, with an index of the blocks of each shard."""

    __slots__ = ("_runs", "blocks", "size")

    def __init__(self) -> None:
        # Number of bytes at the start of the file whose block headers are known.
        self.size = 0
        self.blocks: list[Block] = []
        self._runs: array[int] = array("Q")  # generation and index in ``blocks``, sorted

    def extend(self, blocks: list[Block]) -> None:
        first = len(self.blocks)
        self.blocks += blocks
        runs = [
            (generation << _PLACE_BITS) + place
            for place, block in enumerate(blocks, first)
            for generation in block.generations
        ]
        self._runs = array("Q", sorted([*self._runs, *runs]))
        self.size = blocks[-1].end if blocks else self.size

    def of(self, generation: int, floor: int) -> list[Block]:
        low = bisect_left(self._runs, generation << _PLACE_BITS)
        high = bisect_left(self._runs, (generation + 1) << _PLACE_BITS, low)
        places = [run & ((1 << _PLACE_BITS) - 1) for run in self._runs[low:high]]
        return [self.blocks[at] for at in places if self.blocks[at].position >= floor]


class RunReader:
    """Reader of rows (records and marks) from the slot files of a wheel; each call is for one
    shard.

    The block headers of a slot are read once for all shards, and so is a block that several shards
    share, while they are cached.

    Args:
        bodies_bytes_max: memory for cached blocks that several shards share, in bytes.
    """

    def __init__(self, path: str, files: Files, bodies_bytes_max: int) -> None:
        self._path = path
        self._files = files
        self._bodies_bytes_max = bodies_bytes_max
        self._indexes: OrderedDict[int, Index] = OrderedDict()
        self._bodies: OrderedDict[Block, Body] = OrderedDict()
        # Memory of the cached blocks, in bytes.
        self.kept_bytes = 0

    def path_of(self, start_ms: int) -> str:
        return f"{self._path}/{FOLDER}/{file_name(start_ms)}"

    def blocks(self, start_ms: int, size: int, generation: int, floor: int) -> list[Block]:
        """Return the headers of the blocks between the bytes ``floor`` and ``size`` of a slot's
        file that hold rows of a shard. Raises ``BlockDamagedError`` or ``OSError``.
        """
        index = self._indexes.get(start_ms)
        if index is None:
            index = self._indexes[start_ms] = Index()
            if len(self._indexes) > _INDEXED_MAX:
                self._indexes.popitem(last=False)
        self._indexes.move_to_end(start_ms)
        if index.size < size:
            read = partial(self._files.read_at, self.path_of(start_ms))
            found: list[Block] = []
            try:
                found.extend(walk_blocks(read, start_ms, index.size, size))
            finally:
                index.extend(found)
        return index.of(generation, floor)

    def rows(
        self,
        start_ms: int,
        block: Block,
        generation: int,
        after_ms: int = -1,
        upto_ms: int = sys.maxsize,
    ) -> list[Frame]:
        """Return the rows of a shard in a block, in key order, with ``after_ms <= key_ms <=
        upto_ms``, epoch ms; raises as ``blocks``.
        """
        body = self._bodies.get(block)
        if body is None:
            data = self._files.read_at(self.path_of(start_ms), block.body_position, block.length)
            body = Body(start_ms, block, data)
            if len(block.generations) > 1:
                self._keep(block, body)
        else:
            self._bodies.move_to_end(block)
        return body.rows(*block.run(generation), after_ms, upto_ms)

    def _keep(self, block: Block, body: Body) -> None:
        self._bodies[block] = body
        self.kept_bytes += block.length
        while self.kept_bytes > self._bodies_bytes_max:
            self.kept_bytes -= self._bodies.popitem(last=False)[0].length

    def forget(self, start_ms: int) -> None:
        """Drop the slot's block headers, because its file was removed or replaced."""
        self._indexes.pop(start_ms, None)

    def close(self) -> None:
        self._files.close()
        self._indexes.clear()
        self._bodies.clear()
        self.kept_bytes = 0


_log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True, kw_only=True)
class SlotShard(ShardState):
    """State of one shard in a wheel; ``number``: its index in the columns of ``Slot``."""

    # Number of the shard's store, by which its rows are found; new at a start over.
    generation: int
    ids: IdIndex
    # K of the last ``prune``.
    cursor_key: Key = START_KEY
    # Start times of the slots in which it has rows, sorted, epoch milliseconds.
    starts: list[int] = field(default_factory=list)
    # Rows that are not in a file yet, by the start of their slot.
    waiting: dict[int, list[Frame]] = field(default_factory=dict)
    # Returns all readers of the shard; each holds windows of rows in memory.
    hands: Callable[[], list[DueReader]] = list

    def row(self) -> ShardRow:
        has_ids = self.ids.in_use or not self.ids.is_whole
        place = (self.number, self.generation, self.topic, self.partition)
        return ShardRow(*place, self.stop_offset, has_ids, self.label)


@dataclass(eq=False, slots=True)
class Slot:
    """Slot of a wheel: the records with keys in ``[start_ms, stop_ms)``.

    Its columns ``counts``, ``firsts`` and ``stops`` describe the file as in ``SlotRow``. They are
    compact arrays, because a thousand shards in 720 slots are 720,000 cells.
    """

    start_ms: int
    stop_ms: int
    size: int = 0
    counts: array[int] = field(default_factory=lambda: array("I"))
    firsts: array[int] = field(default_factory=lambda: array("q"))
    stops: array[int] = field(default_factory=lambda: array("q"))
    # By shard number, the byte position below which the shard's blocks are invalid.
    floors: dict[int, int] = field(default_factory=dict)
    # By shard number, damaged rows that have to be read again from the log.
    lost: dict[int, LostRows] = field(default_factory=dict)
    # Number of shards that have rows here, in the file or in memory.
    users: int = 0
    # Numbers of the shards that have rows not yet in the file.
    waiting: set[int] = field(default_factory=set)
    # Whether the file was written to since the last sync.
    dirty: bool = False
    # What is damaged.
    why: str = "it was found damaged, and is not read again yet"

    @classmethod
    def of_row(cls, row: SlotRow, slot_ms: int) -> Slot:
        return cls(
            row.start_ms,
            row.start_ms + slot_ms,
            row.size,
            unpack("I", row.counts),
            unpack("q", row.firsts),
            unpack("q", row.stops),
            row.floors,
            {lost.shard: lost for lost in row.lost},
        )

    def row(self) -> SlotRow:
        columns = pack("I", self.counts), pack("q", self.firsts), pack("q", self.stops)
        return SlotRow(self.start_ms, self.size, *columns, self.floors, list(self.lost.values()))

    def held_by(self, number: int) -> bool:
        """Return whether the file has, or had before damage, rows of the shard ``number``."""
        return number < len(self.stops) and self.stops[number] > 0

    def note(self, number: int, count: int, first: int, stop: int) -> None:
        """Note ``count`` more records of a shard, with rows at source offsets ``[first, stop)``."""
        more = number + 1 - len(self.stops)
        if more > 0:
            for column in (self.counts, self.firsts, self.stops):
                column.frombytes(bytes(more * column.itemsize))
        if self.stops[number]:
            first, stop = min(first, self.firsts[number]), max(stop, self.stops[number])
        self.firsts[number], self.stops[number] = first, stop
        self.counts[number] += count

    def clear(self, number: int) -> None:
        # The shard's blocks in the file stay valid until ``floors`` or a new generation excludes
        # them.
        if number < len(self.stops):
            self.counts[number] = self.firsts[number] = self.stops[number] = 0
        self.lost.pop(number, None)
        self.floors.pop(number, None)

    def lose(self, number: int) -> None:
        """Note that all rows of a shard in the file are to be read from the log."""
        first, stop, count = self.firsts[number], self.stops[number], self.counts[number]
        self.lost[number] = LostRows(number, self.start_ms, first, stop, count)


class Slots:
    """All slots of a wheel, with their rows (records and marks) in memory and in files.

    Attributes:
        by_start: slots that hold rows, by start time, epoch milliseconds.
        buffer_bytes: memory of the rows that are not in a file yet, in bytes.
        unsynced_bytes: memory of the rows that were added since the last sync, in bytes.
        has_changed: whether the horizon file is out of date.
        has_names: whether slot files were created since the last sync.
    """

    def __init__(
        self,
        folder: StoreFolder,
        files: Files,
        slot_ms: int,
        bodies_bytes_max: int,
        count: Callable[[SlotShard, int], None],
    ) -> None:
        self.slot_ms: Final = slot_ms
        self.count: Final = count
        self._folder = folder
        self._files = files
        self._reader = RunReader(folder.path, files, bodies_bytes_max)
        self.path_of: Final = self._reader.path_of
        self.fill([], [])

    def fill(self, shards: Iterable[SlotShard], rows: Iterable[SlotRow]) -> None:
        self.by_start: dict[int, Slot] = {}
        self.shards = {shard.number: shard for shard in shards}
        self.buffer_bytes = self.unsynced_bytes = 0
        self.has_changed = False
        self.has_names = False
        self._file_bytes = 0
        self._reader.close()
        for row in rows:
            slot = Slot.of_row(row, self.slot_ms)
            for number, shard in self.shards.items():
                if slot.held_by(number):
                    shard.starts.append(slot.start_ms)
                    self.count(shard, slot.counts[number])
                    slot.users += 1
            if slot.users:
                self.by_start[slot.start_ms] = slot
                self._file_bytes += slot.size
        for shard in self.shards.values():
            shard.starts.sort()

    # --- rows ----------------------------------------------------------------------------------

    def take(self, shard: SlotShard, rows: Sequence[Frame]) -> None:
        """Add rows to their slots in memory; the caller adds the number of records by ``count``."""
        waiting, slot_ms = shard.waiting, self.slot_ms
        last = -1
        for row in rows:
            start_ms = row[0] - row[0] % slot_ms
            if start_ms != last:
                last = start_ms
                run = waiting.get(start_ms)
                if run is None:
                    run = self._begin(shard, start_ms)
                append = run.append
            append(row)
        cost = cost_of(rows)
        self.buffer_bytes += cost
        self.unsynced_bytes += cost
        self.has_changed = True

    def _begin(self, shard: SlotShard, start_ms: int) -> list[Frame]:
        slot = self.by_start.get(start_ms)
        if slot is None:
            slot = self.by_start[start_ms] = Slot(start_ms, start_ms + self.slot_ms)
        if not slot.held_by(shard.number):
            insort(shard.starts, start_ms)
            slot.users += 1
        slot.waiting.add(shard.number)
        run = shard.waiting[start_ms] = []
        return run

    def records_in(self, shard: SlotShard, slot: Slot) -> int:
        found = slot.counts[shard.number] if slot.held_by(shard.number) else 0
        return found + count_records(shard.waiting.get(slot.start_ms, []))

    @property
    def bytes(self) -> int:
        return self._file_bytes + self.buffer_bytes

    def drop(self, shard: SlotShard, start_ms: int) -> None:
        # The slot's file is removed with the last shard that has rows in it.
        slot = self.by_start[start_ms]
        self._clear(shard, slot)
        if not slot.users:
            self._remove(slot)

    def replace(self, shard: SlotShard, start_ms: int, rows: Sequence[Frame]) -> None:
        slot = self.by_start[start_ms]
        self._clear(shard, slot)
        if slot.size:
            slot.floors[shard.number] = slot.size
        self.take(shard, rows)
        self.count(shard, count_records(rows))
        if not slot.users:
            self._remove(slot)

    def _clear(self, shard: SlotShard, slot: Slot) -> None:
        for hand in shard.hands():
            hand.forget(slot.start_ms)
        self.count(shard, -self.records_in(shard, slot))
        self._unqueue(shard, slot)
        slot.clear(shard.number)
        shard.starts.remove(slot.start_ms)
        slot.users -= 1
        self.has_changed = True

    def _unqueue(self, shard: SlotShard, slot: Slot) -> None:
        self.buffer_bytes -= cost_of(shard.waiting.pop(slot.start_ms, []))
        slot.waiting.discard(shard.number)

    def _remove(self, slot: Slot) -> None:
        del self.by_start[slot.start_ms]
        self._reader.forget(slot.start_ms)
        self._file_bytes -= slot.size
        if slot.size:
            self._files.remove(self.path_of(slot.start_ms))

    # --- files ---------------------------------------------------------------------------------

    def blocks(self, shard: SlotShard, slot: Slot) -> list[Block]:
        """Return the headers of a shard's blocks in a slot's file. Raises ``BlockDamagedError`` or
        ``OSError``.
        """
        if not slot.held_by(shard.number) or not slot.size:
            return []
        floor = slot.floors.get(shard.number, 0)
        return self._reader.blocks(slot.start_ms, slot.size, shard.generation, floor)

    def load(self, shard: SlotShard, slot: Slot, window: Window) -> None:
        read = partial(self._reader.rows, slot.start_ms)
        blocks = self.blocks(shard, slot)
        read_stretch(read, slot.stop_ms, blocks, shard.generation, window)

    def waiting(self) -> list[Slot]:
        return [slot for slot in self.by_start.values() if slot.waiting]

    def flush_fullest(self, bytes_max: int) -> None:
        """Flush slots, those with the most rows first, until rows take ``bytes_max`` bytes."""
        for slot in sorted(self.waiting(), key=self._rows_waiting, reverse=True):
            if self.buffer_bytes <= bytes_max:
                return
            self.flush(slot)

    def _rows_waiting(self, slot: Slot) -> int:
        return sum(len(self.shards[number].waiting[slot.start_ms]) for number in slot.waiting)

    def flush(self, slot: Slot) -> None:
        """Append the rows of a slot that are only in memory to its file; they stay there if that
        fails.
        """
        start_ms = slot.start_ms
        shards = sorted((self.shards[n] for n in slot.waiting), key=lambda one: one.generation)
        runs = [(shard, sort_rows(shard.waiting[start_ms])) for shard in shards]
        data = encode_blocks(start_ms, [(s.generation, rows) for s, rows in runs], slot.size)
        self._files.write_at(self.path_of(start_ms), slot.size, data)
        self.has_names = self.has_names or not slot.size
        self._file_bytes += len(data)
        slot.size, slot.dirty = slot.size + len(data), True
        for shard, rows in runs:
            for hand in shard.hands():
                hand.before_flush(start_ms)
            self._unqueue(shard, slot)
            slot.note(shard.number, count_records(rows), *bounds_of(rows))

    def check_file(self, slot: Slot) -> bool:
        """Cut a slot's file to the size in the horizon file; a shorter one is condemned. Return
        whether it is there; the rows of a missing one are to be read from the log again.
        """
        path = self.path_of(slot.start_ms)
        size = self._files.size_of(path) if slot.size else 0
        if size < 0:
            self._lose(slot, "the file is missing")
            return False
        if size > slot.size:
            self._files.cut(path, slot.size)
        elif size < slot.size:
            self.condemn(slot, f"the file has {size} bytes of {slot.size}")
        return True

    def condemn(self, slot: Slot, reason: str) -> None:
        """Quarantine a slot's damaged file; its rows are to be read from the log again."""
        path = self.path_of(slot.start_ms)
        _log.error("slot_condemned", path=path, why=reason, shards=slot.users)
        if self._files.exists(path):
            self._folder.quarantine(path, file_name(slot.start_ms))
        self._lose(slot, reason)

    def _lose(self, slot: Slot, reason: str) -> None:
        slot.why = reason
        self._reader.forget(slot.start_ms)
        self._file_bytes -= slot.size
        slot.size = 0
        slot.floors.clear()
        self.has_changed = True
        for number, shard in self.shards.items():
            if slot.held_by(number):
                slot.lose(number)
                for hand in shard.hands():
                    hand.forget(slot.start_ms)
