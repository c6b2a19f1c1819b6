"""Wheel of a worker: its shards, their sync, and the recovery when it is opened.

``docs/internals/format-wheel.md`` has layout, invariants and recovery.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from delayservice.base.errors import StoreError
from delayservice.engine.cursor import START_KEY
from delayservice.store.files import Files
from delayservice.store.folder import StoreFolder
from delayservice.store.ids import IdDatabase
from delayservice.store.wheel.horizon import (
    NAME,
    HorizonDamagedError,
    ShardRow,
    WheelHorizon,
    encode_horizon,
    read_horizon,
    write_horizon,
)
from delayservice.store.wheel.slots import FOLDER, Slots, SlotShard, file_name
from delayservice.store.wheel.window import WindowCache

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor, Future

# Fsyncs at the same time share commits of the file system's journal: on ext4, those of 2,000 small
# files took 3.1 s one by one, and 0.22 s with 16 threads.
_FSYNC_THREADS: Final = 16


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """Plan of a sync of the wheel. ``run`` may be called by another thread: it uses no state that
    the worker's thread changes meanwhile.
    """

    path: str
    files: Files
    # Access to the horizon file, used by no other thread.
    horizon_files: Files
    # Paths of the slot files to make durable.
    paths: list[str]
    # Whether slot files were created since the last sync.
    has_names: bool
    ids: IdDatabase
    # Generation (number of the store) and S of each shard that has ids.
    ids_offsets: list[tuple[int, int]]
    horizon: bytes
    # All shards, with their rows in ``horizon``.
    shards: list[tuple[SlotShard, ShardRow]]

    def run(self) -> None:
        # The order matters: after a crash in between, the previous horizon is still true.
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


FORMAT: Final = 1
IDS_FOLDER: Final = "ids"
# Divisor of ``near_bytes_max`` that gives the memory for cached blocks of several shards.
_BODIES_SHARE: Final = 8

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WheelOptions:
    """Limits and times of a worker's wheel, for all its shards together."""

    # Width of a slot, milliseconds; a wheel with slots of another width starts over.
    slot_ms: int = 10_000
    # Memory for rows that are not in a file yet, in bytes.
    buffer_bytes_max: int = 32 << 20
    # Memory for rows of the next slots, in bytes; for a moment a quarter more.
    near_bytes_max: int = 64 << 20
    # Bytes appended since the last sync, which a crash would lose, at which ``append`` starts a
    # sync; more if the horizon file is large.
    sync_bytes: int = 32 << 20
    # Largest number of slot files kept open.
    handles_max: int = 128
    # Seconds after which a closed shard is removed, because its slice has moved.
    unused_s: float = 3_600.0


class Wheel:
    """Wheel of one worker. Only the worker's thread may use it.

    Args:
        executor: runs syncs in the background; None: a thread of the wheel.
        make_ids: returns the database of ids in a folder.
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
        bodies_bytes_max = self.options.near_bytes_max // _BODIES_SHARE
        self.windows = WindowCache(self.options.near_bytes_max - bodies_bytes_max)
        self._files = files or Files(self.options.handles_max)
        self._horizon_files = self._files.twin()
        self._folder = StoreFolder(path, "wheel", FORMAT, self._files)
        self.slots = Slots(self._folder, self._files, self.options.slot_ms, bodies_bytes_max)
        self._path = str(path)
        self._given_executor = executor
        self._ids = make_ids(path / IDS_FOLDER)
        self._is_open = False
        self._executor: Executor | None = None
        self._running: tuple[SyncPlan, Future[None]] | None = None
        self._fill(WheelHorizon(self.options.slot_ms, 1, [], []))

    def _fill(self, horizon: WheelHorizon) -> None:
        self.shards: dict[tuple[str, int], SlotShard] = {}
        self._next_generation = horizon.next_generation
        self._horizon_bytes = 0
        self._sync_wanted = False
        for row in horizon.shards:
            shard = self._add(row.topic, row.partition, row.number, row.generation)
            shard.stop_offset = shard.durable_offset = row.stop_offset
            shard.has_ids, shard.label = row.has_ids, row.label
        self.slots.fill(self.shards.values(), horizon.slots)

    def _add(self, topic: str, partition: int, number: int, generation: int) -> SlotShard:
        ids = self._ids.shard(generation)
        shard = SlotShard(topic, partition, number, generation, ids, idle_s=time.monotonic())
        self.shards[topic, partition] = shard
        return shard

    # --- life ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the wheel, unless it is open. If its content can't be used, start over with no
        records. Slot files are not read, only their sizes are checked.

        Raises:
            StoreError: another process has the folder open, or it is of another kind or newer.
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

    def _read(self) -> WheelHorizon | None:
        try:
            horizon = read_horizon(self._path)
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
        # The horizon file first: without it, nothing else is used after a crash.
        self._horizon_files.remove(f"{self._path}/{NAME}")  # without it, the others are ignored
        self._files.sync_dir(self._path)
        for name in (FOLDER, IDS_FOLDER):
            self._files.remove_tree(f"{self._path}/{name}")
        empty = WheelHorizon(self.options.slot_ms, 1, [], [])
        self._fill(empty)
        self._folder.stamp()
        self._files.make_dir(f"{self._path}/{FOLDER}")
        write_horizon(self._path, self._horizon_files, encode_horizon(empty))

    def _check_files(self) -> None:
        # A missing file is no error here: ``prune`` removes a settled slot's file at once, which
        # the horizon file may still list after a crash. If it is needed, reading it is the error.
        self._files.make_dir(f"{self._path}/{FOLDER}")
        slots = self.slots.by_start.values()
        known = {file_name(slot.start_ms) for slot in slots if slot.size}
        for name in self._files.list_dir(f"{self._path}/{FOLDER}"):
            if name not in known:
                self._files.remove(f"{self._path}/{FOLDER}/{name}")
        missing = [slot.start_ms for slot in slots if not self.slots.check_file(slot)]
        if missing:
            _log.info("slots_missing", path=self._path, slots=len(missing), first_ms=min(missing))

    def close(self) -> None:
        if self._is_open:
            try:
                self.sync()
            finally:
                self.abandon()

    def abandon(self) -> None:
        """Close all files and unlock the folder, without a sync of what was appended."""
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

    def attach(self, topic: str, partition: int) -> SlotShard:
        self.open()
        shard = self.shards.get((topic, partition))
        if shard is None:
            known = self.slots.shards
            number = next(n for n in range(len(known) + 1) if n not in known)
            shard = known[number] = self._add(topic, partition, number, self._take_generation())
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

    def detach(self, shard: SlotShard) -> None:
        """Close a shard; the wheel is closed with its last open shard, else a sync is started."""
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

    def start_over(self, shard: SlotShard) -> None:
        """Delete all records, ids and the label of a shard durably, and set its horizon to 0."""
        self._finish_running()
        self._empty(shard)
        shard.generation = self._take_generation()
        shard.ids = self._ids.shard(shard.generation)
        shard.stop_offset = shard.durable_offset = 0
        shard.label, shard.cursor_key, shard.has_ids = b"", START_KEY, False
        self.sync()

    def remove(self, topic: str, partition: int) -> None:
        """Remove a shard, unless a lane has it open. If opened again, it is filled from the log."""
        was_open = self._is_open
        self.open()
        shard = self.shards.get((topic, partition))
        if shard is not None and not shard.is_open:
            self._remove(shard)
        if not was_open:
            self.close()

    def _remove(self, shard: SlotShard) -> None:
        self._empty(shard)
        del self.shards[shard.topic, shard.partition], self.slots.shards[shard.number]

    def _empty(self, shard: SlotShard) -> None:
        for start_ms in list(shard.starts):
            self.slots.drop(shard, start_ms)
        shard.ids.discard()
        self.slots.has_changed = True

    def _take_generation(self) -> int:
        self._next_generation += 1
        return self._next_generation - 1

    # --- in ------------------------------------------------------------------------------------

    def make_room(self) -> None:
        """Flush or sync, if too many bytes are unwritten or unsynced; call before adding rows."""
        limit = max(self.options.sync_bytes, 4 * self._horizon_bytes)
        if self.slots.unsynced_bytes >= 2 * limit:
            self.sync()  # the disk can't keep up: wait for it
        elif self.slots.unsynced_bytes >= limit:
            self.sync_soon()
        self.advance()
        if self.slots.buffer_bytes >= self.options.buffer_bytes_max:
            self.slots.flush_fullest(self.options.buffer_bytes_max * 3 // 4)

    # --- sync ----------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make all shards durable: slot files, their names, ids, and last the horizon. After an
        error, the process must exit.
        """
        self._finish_running()
        self._sync_wanted = False
        if self.slots.has_changed:
            plan = self._make_plan()
            plan.run()
            self._finish(plan)

    def sync_soon(self) -> None:
        """Start a sync: later calls of ``advance`` flush some rows each, then a thread does the
        fsyncs.
        """
        self._sync_wanted = self._running is None and self.slots.has_changed
        self.advance()

    def advance(self) -> None:
        """Do one step of a sync that was started. After an error, every later call raises it again,
        and the process must exit.
        """
        if self._running is not None:
            if self._running[1].done():
                self._finish_running()
        elif self._sync_wanted:
            left, share = self.slots.buffer_bytes, self.options.buffer_bytes_max // 8
            if left > share:
                self.slots.flush_fullest(left - share)
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

    def _make_plan(self) -> SyncPlan:
        self._remove_unused()
        slots = self.slots
        for slot in slots.waiting():
            slots.flush(slot)
        dirty = [slot for slot in slots.by_start.values() if slot.dirty]
        for slot in dirty:
            slot.dirty = False
        shards = [(shard, shard.row()) for shard in self.shards.values()]
        rows = [slot.row() for slot in slots.by_start.values()]
        horizon = WheelHorizon(
            self.options.slot_ms, self._next_generation, [r for _, r in shards], rows
        )
        data = encode_horizon(horizon)
        plan = SyncPlan(
            path=self._path,
            files=self._files,
            horizon_files=self._horizon_files,
            paths=[slots.path_of(slot.start_ms) for slot in dirty if slot.size],
            has_names=slots.has_names,
            ids=self._ids,
            ids_offsets=[(one.generation, one.stop_offset) for one, _ in shards if one.ids.in_use],
            horizon=data,
            shards=shards,
        )
        slots.has_changed = slots.has_names = False
        slots.unsynced_bytes, self._horizon_bytes = 0, len(data)
        return plan

    def _finish(self, plan: SyncPlan) -> None:
        for shard, row in plan.shards:
            if shard.generation == row.generation:
                shard.durable_offset = row.stop_offset
                shard.ids.durable_offset = row.stop_offset

    def _remove_unused(self) -> None:
        least_s = time.monotonic() - self.options.unused_s
        for shard in list(self.shards.values()):
            if not shard.is_open and shard.idle_s < least_s:
                _log.info("unused_shard_removed", shard=shard.topic, partition=shard.partition)
                self._remove(shard)
