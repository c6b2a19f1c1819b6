"""The wheel of a worker: the slots of all its shards, what of them is durable, and what is damaged.

``docs/format-wheel.md`` has layout, invariants and recovery.
"""

from __future__ import annotations

import time
from bisect import insort
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from delayservice.core.cursor import START_KEY, Key
from delayservice.errors import StoreError
from delayservice.store.files import Files
from delayservice.store.folder import StoreFolder
from delayservice.store.ids import IdDatabase, IdIndex
from delayservice.store.wheel.block import (
    HEADER_BYTES,
    bounds_of,
    count_records,
    encode_blocks,
    sort_rows,
    walk_blocks,
)
from delayservice.store.wheel.horizon import (
    NAME,
    Horizon,
    HorizonDamagedError,
    ShardRow,
    encode_horizon,
    read_horizon,
    write_horizon,
)
from delayservice.store.wheel.near import Near, cost_of
from delayservice.store.wheel.slot import FOLDER, Slot, file_name
from delayservice.store.wheel.store import WheelStore

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor, Future

    from delayservice.store.base import Frame
    from delayservice.store.wheel.near import Hand

FORMAT: Final = 6
IDS_FOLDER: Final = "ids"

_FSYNC_THREADS: Final = 16
"""Fsyncs in flight share the journal's commits: 2,000 small files took 3.1 s one by one and 0.22 s
with 16 threads on ext4."""

_INDEXED_MAX: Final = 64
"""Slots whose positions of blocks are kept in memory."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WheelOptions:
    """Bounds of a worker's wheel, whatever the number of its shards.

    Attributes:
        slot_ms: width of a slot; a wheel of another width starts over.
        buffer_bytes_max: memory for rows that are not in a file yet.
        near_bytes_max: memory for the rows near the hand; for a moment a quarter more.
        sync_bytes: bytes taken, and so to read again after a crash, at which ``append`` syncs by
            itself; more if the horizon itself is large.
        handles_max: slot files kept open.
        unused_s: a shard that is not open for so long is removed: its slice has moved.
    """

    slot_ms: int = 10_000
    buffer_bytes_max: int = 32 << 20
    near_bytes_max: int = 64 << 20
    sync_bytes: int = 32 << 20
    handles_max: int = 128
    unused_s: float = 3_600.0


@dataclass(eq=False, slots=True)
class Shard:
    """What a wheel knows of one shard.

    Attributes:
        topic: hash of the topic's id.
        partition: of the topic.
        number: its place in the columns of slots.
        generation: of what it stores: a store that starts over has a new one.
        ids: its ids.
        has_ids: whether the durable horizon speaks of ids.
        stop_offset: S of what is in memory.
        durable_offset: the durable horizon.
        label: see ``Store.label``.
        cursor_key: K of the newest cursor that it was pruned by.
        starts: starts of the slots in which it has anything, sorted.
        waiting: rows that are in no file yet, by the slot's start.
        pending: records, settled ones that are not pruned yet among them.
        hands: who reads it.
        is_open: whether a lane uses it.
        idle_s: monotonic time from which it was not open.
    """

    topic: str
    partition: int
    number: int
    generation: int
    ids: IdIndex
    has_ids: bool = False
    stop_offset: int = 0
    durable_offset: int = 0
    label: bytes = b""
    cursor_key: Key = START_KEY
    starts: list[int] = field(default_factory=list)
    waiting: dict[int, list[Frame]] = field(default_factory=dict)
    pending: int = 0
    hands: Callable[[], list[Hand]] = list
    is_open: bool = False
    idle_s: float = 0.0

    def row(self) -> ShardRow:
        """Return what the horizon is to say."""
        has_ids = self.ids.in_use or (self.has_ids and not self.is_open)
        place = (self.number, self.generation, self.topic, self.partition)
        return ShardRow(*place, self.stop_offset, has_ids, self.label)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A snapshot of what a sync covers; ``run`` touches nothing that the owner's thread changes."""

    path: str
    files: Files
    horizon_files: Files
    paths: list[str]
    has_names: bool
    ids: IdDatabase
    ids_offsets: list[tuple[int, int]]
    horizon: bytes
    shards: list[tuple[Shard, ShardRow]]

    def run(self) -> None:
        """Make it durable: (1) slot files, (2) their names, (3) ids and marks, (4) the horizon. A
        crash in between leaves the horizon before, and that is still true.

        Raises:
            StoreError: an fsync failed; the process must exit.
        """
        if len(self.paths) < _FSYNC_THREADS:
            for path in self.paths:
                self.files.sync_file(path)
        else:
            with ThreadPoolExecutor(_FSYNC_THREADS) as pool:
                for _ in pool.map(self.files.sync_file, self.paths):
                    pass
        if self.has_names:
            self.files.sync_dir(f"{self.path}/{FOLDER}")
        self.ids.sync(self.ids_offsets)
        write_horizon(self.path, self.horizon_files, self.horizon)


class Wheel:
    """The slots of all shards of one worker. Single-threaded: the worker's loop owns it.

    Args:
        path: the worker's folder; nothing in it is named after a topic.
        options: bounds.
        files: where effects go; tests put their own here.
        executor: where syncs run that are not waited for; a thread of its own unless given.
        make_ids: makes the database of ids in a folder.
    """

    def __init__(
        self,
        path: Path,
        options: WheelOptions | None = None,
        files: Files | None = None,
        executor: Executor | None = None,
        make_ids: Callable[[Path], IdDatabase] = IdDatabase,
    ) -> None:
        self.options = options or WheelOptions()
        self.near = Near(self.options.near_bytes_max)
        self._files = files or Files(self.options.handles_max)
        self._horizon_files = self._files.twin()
        self._folder = StoreFolder(path, "wheel", FORMAT, self._files)
        self._path = str(path)
        self._given_executor = executor
        self._ids = make_ids(path / IDS_FOLDER)
        self._is_open = False
        self._executor: Executor | None = None
        self._running: tuple[_Plan, Future[None]] | None = None
        self._fill(Horizon(self.options.slot_ms, 1, [], []))

    def _fill(self, horizon: Horizon) -> None:
        self.shards: dict[tuple[str, int], Shard] = {}
        self.slots: dict[int, Slot] = {}
        self._by_number: dict[int, Shard] = {}
        self._indexed: OrderedDict[int, None] = OrderedDict()
        self._next_generation = horizon.next_generation
        self._horizon_bytes = 0
        self._buffer_bytes = 0
        self._file_bytes = 0
        self._records = 0
        self._unsynced_bytes = 0
        self._sync_wanted = False
        self._has_changed = False
        self._has_names = False
        for row in horizon.shards:
            shard = self._add(row.topic, row.partition, row.number, row.generation)
            shard.stop_offset = shard.durable_offset = row.stop_offset
            shard.has_ids, shard.label = row.has_ids, row.label
        for slot_row in horizon.slots:
            slot = Slot.of_row(slot_row, horizon.slot_ms)
            for number, shard in self._by_number.items():
                if slot.held_by(number):
                    shard.starts.append(slot.start_ms)
                    self.count(shard, slot.counts[number])
                    slot.users += 1
            if slot.users:
                self.slots[slot.start_ms] = slot
                self._file_bytes += slot.size
        for shard in self.shards.values():
            shard.starts.sort()

    def _add(self, topic: str, partition: int, number: int, generation: int) -> Shard:
        ids = self._ids.shard(generation)
        shard = Shard(topic, partition, number, generation, ids, idle_s=time.monotonic())
        self.shards[topic, partition] = self._by_number[number] = shard
        return shard

    # --- life ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Recover what the horizon vouches for; fine if it is open. Slot files are not read.

        Raises:
            StoreError: another process has the folder open, or its format is foreign or newer.
        """
        if self._is_open:
            return
        is_known = self._folder.enter()
        try:
            horizon = self._read() if is_known else None
            if horizon is None:
                self._discard()
            else:
                self._fill(horizon)
                self._check_files()
                shards = self.shards.values()
                self._ids.recover([(one.ids, one.stop_offset, one.has_ids) for one in shards])
        except BaseException:
            self._ids.close()
            self._folder.leave()
            raise
        self._is_open = True
        self._executor = self._given_executor or ThreadPoolExecutor(1, "store-sync")

    def _read(self) -> Horizon | None:
        try:
            horizon = read_horizon(self._path, self._horizon_files)
        except FileNotFoundError:
            return None
        except (OSError, HorizonDamagedError) as exc:
            _log.error("horizon_damaged", path=self._path, why=str(exc), hint="rebuilt from Kafka")
            return None
        if horizon.slot_ms != self.options.slot_ms:
            _log.warning(
                "slot_width_changed",
                path=self._path,
                found_ms=horizon.slot_ms,
                wanted_ms=self.options.slot_ms,
                hint="the wheel is rebuilt from Kafka",
            )
            return None
        return horizon

    def _discard(self) -> None:
        """Remove everything, the horizon first: without it the rest counts for nothing."""
        self._horizon_files.remove(f"{self._path}/{NAME}")
        self._files.sync_dir(self._path)
        for name in (FOLDER, IDS_FOLDER):
            self._files.remove_tree(f"{self._path}/{name}")
        self._fill(Horizon(self.options.slot_ms, 1, [], []))
        self._folder.stamp()
        self._files.make_dir(f"{self._path}/{FOLDER}")
        empty = encode_horizon(Horizon(self.options.slot_ms, 1, [], []))
        write_horizon(self._path, self._horizon_files, empty)

    def _check_files(self) -> None:
        """Cut what no horizon speaks of, and condemn files that are not what it says."""
        self._files.make_dir(f"{self._path}/{FOLDER}")
        known = {file_name(slot.start_ms) for slot in self.slots.values() if slot.size}
        for name in self._files.list_dir(f"{self._path}/{FOLDER}"):
            if name not in known:
                self._files.remove(f"{self._path}/{FOLDER}/{name}")
        for slot in self.slots.values():
            size = self._files.size_of(self.path_of(slot)) if slot.size else 0
            if size > slot.size:
                self._files.cut(self.path_of(slot), slot.size)
            elif size < slot.size:
                self.condemn(slot, f"the file has {max(size, 0)} bytes of {slot.size}")

    def close(self) -> None:
        """Sync and release every handle; fine if it is closed."""
        if self._is_open:
            try:
                self.sync()
            finally:
                self.abandon()

    def abandon(self) -> None:
        """Release every handle without a sync: the tail is read again from the log."""
        with suppress(StoreError):  # it was raised before, or the tail does not matter
            self._finish_running()
        self._ids.close()
        for shard in self.shards.values():
            for hand in shard.hands():
                hand.forget_all()
        if isinstance(self._executor, ThreadPoolExecutor):
            self._executor.shutdown()
        self._files.close()
        self._horizon_files.close()
        self._folder.leave()
        self._is_open = False

    # --- shards --------------------------------------------------------------------------------

    def shard(self, topic: str, partition: int) -> WheelStore:
        """Return the store of a shard, not opened yet; ``topic``: a hash of its id."""
        return WheelStore(self, topic, partition)

    def attach(self, topic: str, partition: int) -> Shard:
        """Return a shard for a lane to use, opened.

        Raises:
            StoreError: it is in use already, or as ``open``.
        """
        self.open()
        shard = self.shards.get((topic, partition))
        if shard is None:
            number = next(n for n in range(len(self._by_number) + 1) if n not in self._by_number)
            shard = self._add(topic, partition, number, self._take_generation())
        elif shard.is_open:
            raise StoreError(
                f"shard {topic}/{partition} of {self._path} is in use by this process already; "
                "close it first"
            )
        shard.is_open = True
        if not shard.ids.is_whole:
            _log.error("ids_damaged", path=self._path, topic=topic, partition=partition)
            self.start_over(shard)
        return shard

    def detach(self, shard: Shard) -> None:
        """Let go of a shard; the last one closes the wheel."""
        shard.is_open = False
        shard.idle_s = time.monotonic()
        if not any(other.is_open for other in self.shards.values()):
            shard.is_open = True  # its ids are synced with the rest
            self.close()
            shard.is_open = False
            return
        for hand in shard.hands():
            hand.forget_all()
        shard.hands = list
        self.sync_soon()

    def start_over(self, shard: Shard) -> None:
        """Forget all of a shard, durably: what it stored must not come back."""
        self._finish_running()
        self._empty(shard)
        shard.generation = self._take_generation()
        shard.ids = self._ids.shard(shard.generation)
        shard.stop_offset = shard.durable_offset = 0
        shard.label, shard.cursor_key, shard.has_ids = b"", START_KEY, False
        self.sync()

    def remove(self, topic: str, partition: int) -> None:
        """Remove a shard that no lane uses; whoever keeps it again begins with the log."""
        was_open = self._is_open
        self.open()
        shard = self.shards.get((topic, partition))
        if shard is not None and not shard.is_open:
            self._remove(shard)
        if not was_open:
            self.close()

    def _remove(self, shard: Shard) -> None:
        self._empty(shard)
        del self.shards[shard.topic, shard.partition], self._by_number[shard.number]

    def _empty(self, shard: Shard) -> None:
        for start_ms in list(shard.starts):
            self.drop(shard, start_ms)
        shard.ids.discard()
        self._has_changed = True

    def touch(self) -> None:
        """Have the next sync write the horizon."""
        self._has_changed = True

    def _take_generation(self) -> int:
        self._next_generation += 1
        return self._next_generation - 1

    # --- in ------------------------------------------------------------------------------------

    def make_room(self) -> None:
        """Flush and sync when a bound is reached, before anything is taken.

        Raises:
            StoreError: the disk is full or fails; nothing is lost.
        """
        limit = max(self.options.sync_bytes, 4 * self._horizon_bytes)
        if self._unsynced_bytes >= 2 * limit:
            self.sync()  # the disk can't keep up: wait for it
        elif self._unsynced_bytes >= limit:
            self.sync_soon()
        self.advance()
        if self._buffer_bytes >= self.options.buffer_bytes_max:
            self._flush_fullest(self.options.buffer_bytes_max * 3 // 4)

    def take(self, shard: Shard, rows: Sequence[Frame]) -> None:
        """Put rows into their slots; ``pending`` is the caller's to count."""
        waiting, slot_ms = shard.waiting, self.options.slot_ms
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
        self._buffer_bytes += cost
        self._unsynced_bytes += cost
        self._has_changed = True

    def _begin(self, shard: Shard, start_ms: int) -> list[Frame]:
        slot = self.slots.get(start_ms)
        if slot is None:
            slot = self.slots[start_ms] = Slot(start_ms, start_ms + self.options.slot_ms)
        if not slot.held_by(shard.number):
            insort(shard.starts, start_ms)
            slot.users += 1
        slot.waiting.add(shard.number)
        run = shard.waiting[start_ms] = []
        return run

    def drop(self, shard: Shard, start_ms: int) -> None:
        """Forget what a shard has in a slot; the file goes with the last shard of it."""
        slot = self.slots[start_ms]
        for hand in shard.hands():
            hand.forget(start_ms)
        self.count(shard, -self.records_in(shard, slot))
        self._unqueue(shard, slot)
        slot.clear(shard.number)
        shard.starts.remove(start_ms)
        slot.users -= 1
        self._has_changed = True
        if not slot.users:
            self._remove_slot(slot)

    def _remove_slot(self, slot: Slot) -> None:
        del self.slots[slot.start_ms]
        self._indexed.pop(slot.start_ms, None)
        self._file_bytes -= slot.size
        if slot.size:
            self._files.remove(self.path_of(slot))

    def count(self, shard: Shard, records: int) -> None:
        """Count more records of a shard, or fewer."""
        shard.pending += records
        self._records += records

    def records_in(self, shard: Shard, slot: Slot) -> int:
        """Return how many records a shard has in a slot, in the file and in memory."""
        found = slot.counts[shard.number] if slot.held_by(shard.number) else 0
        return found + count_records(shard.waiting.get(slot.start_ms, []))

    def _unqueue(self, shard: Shard, slot: Slot) -> list[Frame]:
        rows = shard.waiting.pop(slot.start_ms, [])
        slot.waiting.discard(shard.number)
        self._buffer_bytes -= cost_of(rows)
        return rows

    def replace(self, shard: Shard, start_ms: int, rows: Sequence[Frame]) -> None:
        """Have ``rows`` and no others in a slot of a shard."""
        slot = self.slots[start_ms]
        slot.users += 1  # so that the file stays for those that are left
        self.drop(shard, start_ms)
        slot.void(shard.number)
        self.take(shard, rows)
        self.count(shard, count_records(rows))
        slot.users -= 1
        if not slot.users:
            self._remove_slot(slot)

    # --- files ---------------------------------------------------------------------------------

    def path_of(self, slot: Slot) -> str:
        """Return a slot's file."""
        return f"{self._path}/{FOLDER}/{file_name(slot.start_ms)}"

    def read_at(self, slot: Slot, position: int, size: int) -> bytes:
        """Read bytes of a slot's file."""
        return self._files.read_at(self.path_of(slot), position, size)

    def positions(self, shard: Shard, slot: Slot) -> Sequence[int]:
        """Return where the blocks of a shard begin in a slot's file.

        Raises:
            BlockDamagedError, OSError: the file is damaged or missing.
        """
        if slot.index is None:
            slot.index = self._make_index(slot)
            if len(self._indexed) >= _INDEXED_MAX:
                oldest = self.slots.get(self._indexed.popitem(last=False)[0])
                if oldest is not None:
                    oldest.index = None
        self._indexed[slot.start_ms] = None
        self._indexed.move_to_end(slot.start_ms)
        return slot.index.get(shard.number, ())

    def _make_index(self, slot: Slot) -> dict[int, array[int]]:
        index: dict[int, array[int]] = {}
        read = self._reader(slot)
        for block in walk_blocks(read, slot.start_ms, 0, slot.size):
            shard = self._by_number.get(block.shard)
            is_here = shard is not None and shard.generation == block.generation
            if is_here and block.position >= slot.floors.get(block.shard, 0):
                Slot.put(index, block.shard, block.position)
        return index

    def _reader(self, slot: Slot) -> Callable[[int, int], bytes]:
        path = self.path_of(slot)
        return lambda position, size: self._files.read_at(path, position, size)

    def _flush_fullest(self, bytes_max: int) -> None:
        """Flush the fullest slots, so that writes are large, until what is left is within bounds.

        Raises:
            StoreError: the disk is full or fails; nothing is lost.
        """
        for slot in sorted(self._waiting_slots(), key=self._rows_waiting, reverse=True):
            if self._buffer_bytes <= bytes_max:
                return
            self._flush(slot)

    def _waiting_slots(self) -> list[Slot]:
        return [slot for slot in self.slots.values() if slot.waiting]

    def _rows_waiting(self, slot: Slot) -> int:
        return sum(len(self._by_number[n].waiting[slot.start_ms]) for n in slot.waiting)

    def _flush(self, slot: Slot) -> None:
        """Append the rows of a slot that wait to its file, shard by shard."""
        parts: list[bytes] = []
        blocks: list[tuple[int, int]] = []
        position = slot.size
        for number in sorted(slot.waiting):
            shard = self._by_number[number]
            rows = sort_rows(shard.waiting[slot.start_ms])
            found = encode_blocks(slot.start_ms, number, shard.generation, rows, position)
            for body in found[2::3]:
                blocks.append((number, position))
                position += HEADER_BYTES + len(body)
            parts += found
        self._files.write_at(self.path_of(slot), slot.size, b"".join(parts))
        if not slot.size:
            self._has_names = True
        self._file_bytes += position - slot.size
        slot.size, slot.dirty = position, True
        for number in sorted(slot.waiting):
            shard = self._by_number[number]
            for hand in shard.hands():
                hand.before_flush(slot.start_ms)
            rows = self._unqueue(shard, slot)
            slot.note(number, count_records(rows), *bounds_of(rows))
        if slot.index is not None and slot.start_ms in self._indexed:
            for number, position in blocks:
                Slot.put(slot.index, number, position)
        else:
            slot.index = None

    # --- damage --------------------------------------------------------------------------------

    def condemn(self, slot: Slot, reason: str) -> None:
        """Put a damaged file into quarantine: all that its shards had there is to be read again."""
        _log.error("slot_condemned", path=self.path_of(slot), why=reason, shards=slot.users)
        if self._files.exists(self.path_of(slot)):
            self._folder.quarantine(self.path_of(slot), file_name(slot.start_ms))
        self._file_bytes -= slot.size
        slot.size, slot.index = 0, {}
        slot.floors.clear()
        self._indexed.pop(slot.start_ms, None)
        self._has_changed = True
        for number, shard in self._by_number.items():
            if slot.held_by(number):
                self.lose(shard, slot)

    def lose(self, shard: Shard, slot: Slot) -> None:
        """Note that what a shard has in a slot's file is to be read again."""
        slot.lose(shard.number)
        self._has_changed = True
        for hand in shard.hands():
            hand.forget(slot.start_ms)

    # --- sync ----------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make everything durable: slot files, their names, ids, and last the horizon.

        Raises:
            StoreError: an fsync failed; the process must exit.
        """
        self._finish_running()
        self._sync_wanted = False
        if self._has_changed:
            plan = self._make_plan()
            plan.run()
            self._finish(plan)

    def sync_soon(self) -> None:
        """Sync without keeping the caller waiting: rows are flushed a little with each call, and
        then a thread does the fsyncs.
        """
        self._sync_wanted = self._running is None and self._has_changed
        self.advance()

    def advance(self) -> None:
        """Do a little for a sync that is wanted, or take note that it is done.

        Raises:
            StoreError: it failed; the process must exit, and this is raised by every later call.
        """
        if self._running is not None:
            if self._running[1].done():
                self._finish_running()
        elif self._sync_wanted:
            left, share = self._buffer_bytes, self.options.buffer_bytes_max // 8
            if left > share:
                self._flush_fullest(left - share)
                return
            self._sync_wanted = False
            plan = self._make_plan()
            if self._executor is None:
                raise AssertionError("the wheel is not open")
            self._running = plan, self._executor.submit(plan.run)

    def _finish_running(self) -> None:
        if self._running is not None:
            plan, done = self._running
            done.result()
            self._running = None
            self._finish(plan)

    def _make_plan(self) -> _Plan:
        """Flush, and say what must be made durable."""
        self._remove_unused()
        for slot in self._waiting_slots():
            self._flush(slot)
        dirty = [slot for slot in self.slots.values() if slot.dirty]
        for slot in dirty:
            slot.dirty = False
        shards = [(shard, shard.row()) for shard in self.shards.values()]
        rows = [slot.row() for slot in self.slots.values()]
        horizon = Horizon(self.options.slot_ms, self._next_generation, [r for _, r in shards], rows)
        data = encode_horizon(horizon)
        ids = [(shard.generation, shard.stop_offset) for shard, _ in shards if shard.ids.in_use]
        paths = [self.path_of(slot) for slot in dirty if slot.size]
        plan = _Plan(
            self._path,
            self._files,
            self._horizon_files,
            paths,
            self._has_names,
            self._ids,
            ids,
            data,
            shards,
        )
        self._has_changed = self._has_names = False
        self._unsynced_bytes, self._horizon_bytes = 0, len(data)
        return plan

    def _finish(self, plan: _Plan) -> None:
        for shard, row in plan.shards:
            if shard.generation == row.generation:
                shard.durable_offset = row.stop_offset
                shard.ids.note_durable(row.stop_offset)

    def _remove_unused(self) -> None:
        """Remove shards whose slices have moved: their rows would keep files for ever."""
        least_s = time.monotonic() - self.options.unused_s
        for shard in list(self.shards.values()):
            if not shard.is_open and shard.idle_s < least_s:
                _log.info("unused_shard_removed", shard=shard.topic, partition=shard.partition)
                self._remove(shard)

    # --- facts ---------------------------------------------------------------------------------

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that rows take: those that wait for a file, and those near the hand."""
        return self._buffer_bytes + self.near.cost

    def bytes_of(self, shard: Shard) -> int:
        """Return the bytes that a shard takes on the disk and in memory, by its part of the
        records.
        """
        stored = self._file_bytes + self._buffer_bytes
        return stored * shard.pending // max(self._records, 1)
