"""Wheel of a worker: its shards, their sync, and the recovery when it is opened; and the store of
one shard. Reads take place in windows: rows (records and marks) of a slot, or of a part of it, in
memory. ``docs/internals/format-wheel.md`` has layout, invariants and recovery.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

import msgspec
import structlog

from delayservice.base.errors import SlotDamagedError, StoreError
from delayservice.contract.entry import OFFSET_MAX
from delayservice.engine.cursor import START_KEY, Cursor, Group, Key
from delayservice.store.base import Frame, Mark, Named, Scanner, Sighting, StoreStats
from delayservice.store.files import Files
from delayservice.store.ids import IdDatabase
from delayservice.store.rocks import is_damage
from delayservice.store.shards import ShardStore, WorkerShards
from delayservice.store.wheel.block import MARK_ONLY, BlockDamagedError
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
from delayservice.store.wheel.window import DueReader, Window, WindowCache

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor, Future

    from delayservice.store.wheel.horizon import LostRows
    from delayservice.store.wheel.slots import Slot

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


class Wheel(WorkerShards[SlotShard]):
    """Wheel of one worker.

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
        files = files or Files(self.options.handles_max)
        super().__init__(path, "wheel", FORMAT, files, self.options.unused_s)
        bodies_bytes_max = self.options.near_bytes_max // _BODIES_SHARE
        self.windows = WindowCache(self.options.near_bytes_max - bodies_bytes_max)
        self._horizon_files = files.twin()
        self.slots = Slots(self._folder, files, self.options.slot_ms, bodies_bytes_max, self.count)
        self._executor = executor
        self._ids = make_ids(path / IDS_FOLDER)
        self._running: tuple[SyncPlan, Future[None]] | None = None
        # Slots whose files were missing when the wheel was opened.
        self.missing: list[Slot] = []

    def store(self, topic: str, partition: int) -> WheelStore:
        return WheelStore(self, topic, partition)

    def _fill(self, horizon: WheelHorizon) -> None:
        self._next_generation = horizon.next_generation
        self._horizon_bytes = 0
        self._sync_wanted = False
        for row in horizon.shards:
            shard = self._add(row.topic, row.partition, row.number, row.generation)
            shard.stop_offset = shard.durable_offset = row.stop_offset
            shard.label = row.label
            self.shards[row.topic, row.partition] = shard
        self.slots.fill(self.shards.values(), horizon.slots)

    def _add(self, topic: str, partition: int, number: int, generation: int) -> SlotShard:
        ids = self._ids.shard(generation)
        return SlotShard(topic, partition, number, generation=generation, ids=ids)

    # --- life ----------------------------------------------------------------------------------

    def _recover(self) -> bool:
        # Slot files are not read, only their sizes are checked.
        horizon = self._read()
        if horizon is None:
            return False
        self._fill(horizon)
        self._check_files()
        self._had_ids = {row.number: row.has_ids for row in horizon.shards}
        if not self.is_view:  # its ids are not asked for
            self._recover_ids()
        return True

    def _recover_ids(self, *, counted: bool = False) -> None:
        shards = self.shards.values()
        known = [(one.ids, one.stop_offset, self._had_ids[one.number]) for one in shards]
        self._ids.recover(known, counted=counted)

    def _read(self) -> WheelHorizon | None:
        try:
            horizon = read_horizon(self.path)
        except FileNotFoundError:
            return None
        except (OSError, HorizonDamagedError) as exc:
            if not is_damage(exc):
                raise StoreError(f"can't open the store {self.path}: {exc}") from exc
            self._raise_in_view(str(exc))
            _log.error("horizon_damaged", path=self.path, why=str(exc), hint="rebuilt from Kafka")
            return None
        if horizon.slot_ms != self.options.slot_ms:
            _log.warning(
                "slot_width_changed",
                path=self.path,
                found_ms=horizon.slot_ms,
                wanted_ms=self.options.slot_ms,
                hint="the wheel is rebuilt from Kafka",
            )
            return None
        return horizon

    def _start_over(self, *, is_damaged: bool) -> None:  # noqa: ARG002 - all is removed
        # The horizon file first: without it, nothing else is used after a crash.
        self._horizon_files.remove(f"{self.path}/{NAME}")  # without it, the others are ignored
        self._files.sync_dir(self.path)
        for name in (FOLDER, IDS_FOLDER):
            self._files.remove_tree(f"{self.path}/{name}")
        empty = WheelHorizon(self.options.slot_ms, 1, [], [])
        self._fill(empty)
        self._folder.stamp()
        self._files.make_dir(f"{self.path}/{FOLDER}")
        write_horizon(self.path, self._horizon_files, encode_horizon(empty))

    def _check_files(self) -> None:
        # A missing file is no error here: ``prune`` removes a settled slot's file at once, which
        # the horizon file may still list after a crash. If it is needed, reading it is the error.
        self._files.make_dir(f"{self.path}/{FOLDER}")
        slots = self.slots.by_start.values()
        known = {file_name(slot.start_ms) for slot in slots if slot.size}
        for name in self._files.list_dir(f"{self.path}/{FOLDER}"):
            if name not in known:
                self._files.remove(f"{self.path}/{FOLDER}/{name}")
        self.missing = [slot for slot in slots if not self.slots.check_file(slot)]
        if self.missing:
            first_ms = min(slot.start_ms for slot in self.missing)
            _log.info("slots_missing", path=self.path, slots=len(self.missing), first_ms=first_ms)

    def check(self) -> bool:
        self._recover_ids(counted=True)
        return all(shard.ids.is_whole for shard in self.shards.values())

    def _seal(self) -> None:
        self._ids.seal()

    def _release(self) -> None:
        with suppress(StoreError):  # it was raised before, or the tail does not matter
            self._finish_running()
        self._ids.close()
        for shard in self.shards.values():
            for hand in shard.hands():
                hand.forget_all()
        if isinstance(self._executor, ThreadPoolExecutor):
            self._executor.shutdown()
            self._executor = None
        self._horizon_files.close()

    # --- shards --------------------------------------------------------------------------------

    def attach(self, topic: str, partition: int) -> SlotShard:
        shard = super().attach(topic, partition)
        if not shard.ids.is_whole:
            self._raise_in_view("its ids are damaged or missing")
            _log.error("ids_damaged", path=self.path, topic=topic, partition=partition)
            self.start_over(shard)
        return shard

    def _create(self, topic: str, partition: int) -> SlotShard:
        known = self.slots.shards
        number = next(n for n in range(len(known) + 1) if n not in known)
        shard = known[number] = self._add(topic, partition, number, self._take_generation())
        return shard

    def _clear(self, shard: SlotShard) -> None:
        self._empty(shard)
        shard.generation = self._take_generation()
        shard.ids = self._ids.shard(shard.generation)
        shard.stop_offset = shard.durable_offset = 0
        shard.label, shard.cursor_key = b"", START_KEY

    def _drop(self, shard: SlotShard) -> None:
        self._empty(shard)
        del self.slots.shards[shard.number]

    def _empty(self, shard: SlotShard) -> None:
        self._finish_running()  # a sync under way would write S of ids that are gone
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
        # Slot files, their names, ids, and last the horizon.
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
                self._executor = ThreadPoolExecutor(1, "store-sync")
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
            path=self.path,
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


# Approximate largest number of records that one rebuild after damage reads again from the log and
# holds in memory.
REREAD_ROWS: Final = 50_000


class WheelStore(ShardStore[SlotShard]):
    """Store of one shard in the wheel that all shards of its worker share."""

    def __init__(self, wheel: Wheel, topic: str, partition: int) -> None:
        super().__init__(wheel, topic, partition)
        self._wheel = wheel
        self._slots = wheel.slots
        self._scanning: WeakSet[DueReader] = WeakSet()  # a reset leaves them in use

    # --- life ----------------------------------------------------------------------------------

    def _begin(self, shard: SlotShard) -> None:
        self._hand = self._make_hand(shard, chunk=REREAD_ROWS)
        shard.hands = lambda: [self._hand, *self._scanning]

    def set_label(self, label: bytes) -> None:
        self._shard.label = label
        self._slots.has_changed = True

    def close(self) -> None:
        if self._attached is not None:
            for hand in self._attached.hands():
                hand.forget_all()
            self._attached.hands = list
        super().close()

    # --- store ---------------------------------------------------------------------------------

    def append(
        self,
        frames: Sequence[Frame],
        named: Sequence[Named],
        marks: Sequence[Mark],
        stop_offset: int,
        sightings: Sequence[Sighting] = (),
    ) -> None:
        # Flush or sync first, so that a failure of the disk leaves the store as it was.
        shard = self._shard
        self._wheel.make_room()
        if named or marks or sightings:
            shard.ids.append(named, marks, stop_offset, sightings)
        self._slots.take(shard, frames)
        if marks:
            rows = [(key_ms, offset, mark, MARK_ONLY) for _, key_ms, offset, mark in marks]
            self._slots.take(shard, rows)
        self._wheel.count(shard, len(frames))
        shard.stop_offset = stop_offset

    # --- due -----------------------------------------------------------------------------------

    def read_due(self, after: Key, upto_ms: int, limit: int) -> list[Frame]:
        # If there are few rows, a window of the next slot is loaded early.
        self._wheel.advance()
        found = self._hand.read(after, upto_ms, limit)
        if len(found) < limit:
            self._hand.preload(upto_ms)
        return found

    def next_due_ms(self, after: Key) -> int | None:
        return self._hand.next_due_ms(after)

    def scanner(self, *, for_repair: bool = False) -> Scanner:
        hand = self._make_hand(self._shard, chunk=REREAD_ROWS if for_repair else OFFSET_MAX)
        self._scanning.add(hand)
        return Scanner(hand.read)

    def _make_hand(self, shard: SlotShard, chunk: int) -> DueReader:
        load = partial(self._load, chunk)
        return DueReader(
            shard.starts, self._slots.slot_ms, shard.waiting, load, self._wheel.windows
        )

    def _load(self, chunk: int, start_ms: int, after: Key) -> Window:
        """Return a window (rows in memory) of a slot with the rows above ``after``, up to the first
        damaged row. Raises ``SlotDamagedError`` if it would begin with one; ``chunk``: see
        ``_damage``.
        """
        shard, slots = self._shard, self._slots
        slot = slots.by_start[start_ms]
        window = Window(start_ms, after, self._wheel.windows.share)
        lost = slot.lost.get(shard.number)
        if lost is not None and after >= (lost.from_ms - 1, OFFSET_MAX):
            raise self._damage(slot, lost, chunk)
        try:
            slots.load(shard, slot, window)
        except (BlockDamagedError, OSError) as exc:
            if not is_damage(exc):
                raise StoreError(f"can't read the store {self._wheel.path}: {exc}") from exc
            if self._wheel.is_view:  # other shards may have sound blocks in the file
                slot.why = str(exc)
                slot.lose(shard.number)
            else:
                slots.condemn(slot, str(exc))
            return self._load(chunk, start_ms, after)
        if lost is not None:
            window.end_with((lost.from_ms - 1, OFFSET_MAX))
        waiting = shard.waiting.get(start_ms, [])
        window.add(waiting)
        window.seen = len(waiting)
        return window

    # --- damage --------------------------------------------------------------------------------

    def _damage(self, slot: Slot, lost: LostRows, chunk: int) -> SlotDamagedError:
        """Return the error that states the range to read again from the log: the damaged rows
        ``lost`` of ``slot``; or a part of them, if they are more than ``chunk`` records; or those
        of the next slots too, if all together are at most ``chunk`` records. ``OFFSET_MAX`` as
        ``chunk``: the one slot.
        """
        number = self._shard.number
        width = slot.stop_ms - slot.start_ms
        if lost.count > chunk:
            stop_ms = min(lost.from_ms + max(width * chunk // lost.count, 1), slot.stop_ms)
            return _damaged(slot, stop_ms, [lost])
        found, count, stop_ms = [lost], lost.count, slot.stop_ms
        starts = self._shard.starts
        for start_ms in starts[starts.index(slot.start_ms) + 1 :]:
            next_slot = self._slots.by_start[start_ms]
            following = next_slot.lost.get(number)
            if following is None or following.from_ms > start_ms or count > chunk:
                break
            if chunk == OFFSET_MAX or count + following.count > chunk:
                break
            found.append(following)
            count, stop_ms = count + following.count, next_slot.stop_ms
        return _damaged(slot, stop_ms, found)

    def rebuild(self, start_ms: int, stop_ms: int, frames: Sequence[Frame]) -> None:
        # In a damaged slot, records that were appended or read again after the damage was found are
        # kept.
        shard = self._shard
        kept: list[tuple[int, int, int]] = []  # start_ms, stop_ms, first offset
        for slot in self._slots_within(start_ms, stop_ms):
            lost = slot.lost.get(shard.number)
            if lost is None:
                try:
                    outside = self._outside(slot, start_ms, stop_ms)
                except SlotDamagedError:  # all of it is read again when it is due
                    kept.append((slot.start_ms, slot.stop_ms, 0))
                else:
                    self._slots.replace(shard, slot.start_ms, outside)
            elif start_ms <= lost.from_ms < stop_ms:
                self._found_again(slot, lost, stop_ms)
                kept.append((slot.start_ms, lost.from_ms, 0))
                kept.append((lost.from_ms, slot.stop_ms, lost.stop_offset))
            else:
                kept.append((slot.start_ms, slot.stop_ms, 0))
        inside = [
            frame
            for frame in frames
            if start_ms <= frame[0] < stop_ms
            and not any(a <= frame[0] < b and frame[1] >= first for a, b, first in kept)
        ]
        self._slots.take(shard, inside)
        self._wheel.count(shard, len(inside))

    def _found_again(self, slot: Slot, lost: LostRows, stop_ms: int) -> None:
        number = self._shard.number
        self._slots.has_changed = True
        for hand in self._shard.hands():
            hand.forget(slot.start_ms)
        if stop_ms < slot.stop_ms:
            slot.lost[number] = msgspec.structs.replace(lost, from_ms=stop_ms)
            return
        del slot.lost[number]
        slot.counts[number] -= lost.count
        self._wheel.count(self._shard, -lost.count)

    def _outside(self, slot: Slot, start_ms: int, stop_ms: int) -> list[Frame]:
        scanner, kept = self.scanner(), list[Frame]()
        spans = ((slot.start_ms, start_ms), (stop_ms, slot.stop_ms))
        for first_ms, last_ms in spans:
            if first_ms < last_ms:
                kept += scanner.frames((first_ms - 1, OFFSET_MAX), last_ms - 1)
        return kept

    def _slots_within(self, start_ms: int, stop_ms: int) -> list[Slot]:
        slots = map(self._slots.by_start.__getitem__, list(self._shard.starts))
        return [slot for slot in slots if slot.stop_ms > start_ms and slot.start_ms < stop_ms]

    # --- ids -----------------------------------------------------------------------------------

    def latest_unmarked(self, record_id: bytes, below: int) -> Key | None:
        shard = self._shard
        return shard.ids.latest_unmarked(record_id, min(below, shard.stop_offset))

    def group_of(self, record_id: bytes) -> Group | None:
        return self._shard.ids.group_of(record_id)

    def marked_from(self, mark: int) -> list[tuple[int, Key]]:
        return self._shard.ids.marked_from(mark, self._shard.stop_offset)

    def sighted_from(self, seen_by: int) -> list[tuple[int, Key]]:
        return self._shard.ids.sighted_from(seen_by, self._shard.stop_offset)

    # --- prune and sync ------------------------------------------------------------------------

    def prune(self, cursor: Cursor) -> None:
        shard = self._shard
        self._wheel.advance()
        shard.cursor_key = cursor.key
        while shard.starts and shard.starts[0] + self._slots.slot_ms <= cursor.key[0]:
            self._slots.drop(shard, shard.starts[0])
        shard.ids.prune(cursor)

    def sync(self, *, wait: bool = True) -> int:
        if wait:
            self._wheel.sync()
        else:
            self._wheel.sync_soon()
        return self._shard.durable_offset

    def stats(self) -> StoreStats:
        self._wheel.advance()
        shard = self._shard
        passed = self._hand.passed(shard.starts[0], shard.cursor_key) if shard.starts else 0
        stored = self._slots.bytes * shard.pending // max(self._wheel.records, 1)
        return StoreStats(shard.pending - passed, stored, shard.durable_offset)


def _damaged(slot: Slot, stop_ms: int, lost: Sequence[LostRows]) -> SlotDamagedError:
    return SlotDamagedError(
        f"{FOLDER}/{file_name(slot.start_ms)}: {slot.why}",
        start_ms=lost[0].from_ms,
        stop_ms=stop_ms,
        first_offset=min(one.first_offset for one in lost),
        stop_offset=max(one.stop_offset for one in lost),
    )
