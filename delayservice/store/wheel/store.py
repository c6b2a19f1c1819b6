"""``WheelStore``: the parts of the wheel put together behind the store interface."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from delayservice.core.cursor import START_KEY, Cursor, Key
from delayservice.errors import StoreError
from delayservice.store.base import Frame, Lump, Mark, Named, Scanner, Store, StoreStats
from delayservice.store.files import Files
from delayservice.store.folder import StoreFolder
from delayservice.store.ids import IdIndex
from delayservice.store.wheel.block import MARK_ONLY, SLOT_MS, BlockDamagedError
from delayservice.store.wheel.filing import Filing
from delayservice.store.wheel.hand import Hand
from delayservice.store.wheel.manifest import Entry, Manifest
from delayservice.store.wheel.mending import Mender
from delayservice.store.wheel.near import Window, extend_window, load_window
from delayservice.store.wheel.opening import Opener
from delayservice.store.wheel.syncing import SyncPlan, shared_executor
from delayservice.store.wheel.table import SlotTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Executor, Future
    from pathlib import Path

    from delayservice.errors import SlotDamagedError
    from delayservice.store.wheel.slots import Slot

FORMAT: Final = 3
_SCAN_ROWS = 1000


@dataclass(frozen=True, slots=True)
class WheelOptions:
    """Bounds of one shard's wheel.

    Attributes:
        buffer_bytes_max: memory for rows that are not in a file yet.
        near_bytes_max: memory for the windows near the hand; a single window may briefly take
            twice as much.
        sync_bytes: bytes written to slot files, and so to read again after a crash, at which
            ``append`` syncs by itself.
        handles_max: slot files kept open.
        hours_ahead_ms: how long before an hour its records begin to be kept by the minute.
        minutes_ahead_ms: how long before a minute its records begin to be kept by the second.
        open_bytes_min: an hour or minute that takes at most so many bytes of memory is read as it
            is, and not moved to finer slots.
        open_rows: rows moved to finer slots by one call.
    """

    buffer_bytes_max: int = 16 << 20
    near_bytes_max: int = 32 << 20
    sync_bytes: int = 256 << 20
    handles_max: int = 128
    hours_ahead_ms: int = 3_600_000
    minutes_ahead_ms: int = 300_000
    open_bytes_min: int = 4 << 20
    open_rows: int = 4096


class WheelScanner(Scanner):
    """A hand that goes on where it was, as long as the store is not reset."""

    def __init__(self, hand: Hand) -> None:
        self.hand = hand

    def read(self, after: Key, upto_ms: int, limit: int) -> list[Frame]:
        """See ``Scanner.read``."""
        self.hand.forget_before(after[0] // SLOT_MS)
        return self.hand.read(after, upto_ms, limit)


class WheelStore(Store):
    """A shard's pending records in files of an hour, a minute or a second.

    Args:
        path: folder of this shard's store; nothing in it is named after a topic.
        options: bounds.
        files: where effects go; tests put their own here.
        executor: where syncs run that nobody waits for; one for the process, unless given.
    """

    def __init__(
        self,
        path: Path,
        options: WheelOptions | None = None,
        files: Files | None = None,
        executor: Executor | None = None,
    ) -> None:
        self._options = options or WheelOptions()
        self._executor = executor
        self._files = files or Files(self._options.handles_max)
        self._folder = StoreFolder(path, "wheel", FORMAT, self._files)
        self._manifest = Manifest(str(path), self._files.twin())
        self._ids = IdIndex(path / "ids")
        self._path = str(path)
        self._slots_path = f"{path}/slots"
        self._sync_wanted = False
        self._running: tuple[SyncPlan, Future[None]] | None = None
        self._fill(0, b"", [])

    def _fill(self, stop_offset: int, label: bytes, entries: Sequence[Entry]) -> None:
        options = self._options
        self._stop_offset = self._durable_offset = stop_offset
        self._label = label
        self._cursor_key: Key = START_KEY
        self._table = SlotTable(options.hours_ahead_ms, options.minutes_ahead_ms)
        self._filing = Filing(
            self._slots_path, self._files, self._table, entries, self._before_flush
        )
        self._mender = Mender(self._filing, self._files, self._folder, self._forget)
        self._opener = Opener(
            self._filing,
            self._files,
            self._forget,
            self._set_aside,
            options.open_bytes_min,
            options.open_rows,
            options.buffer_bytes_max,
        )
        self._hand = self._make_hand(self._opener.is_ready)
        self._scanners: WeakSet[WheelScanner] = WeakSet()

    def _hands(self) -> list[Hand]:
        return [self._hand, *(scanner.hand for scanner in self._scanners)]

    def _before_flush(self, slot: Slot) -> None:
        for hand in self._hands():
            hand.before_flush(slot)

    def _forget(self, slot: Slot) -> None:
        for hand in self._hands():
            hand.forget(slot)

    # --- life ----------------------------------------------------------------------------------

    def open(self) -> int:
        """See ``Store.open``. Reads horizon and index, but no slot file."""
        known = self._folder.enter()
        state = self._manifest.load() if known else None
        if state is not None and self._ids.recover(state.stop_offset, expected=state.has_ids):
            self._fill(state.stop_offset, state.label, state.live)
            self._manifest.remove_strays()
        else:
            self._discard()
        return self._stop_offset

    @property
    def label(self) -> bytes:
        """See ``Store.label``."""
        return self._label

    def set_label(self, label: bytes) -> None:
        """See ``Store.set_label``: the next sync that begins takes it along."""
        self._label = label

    def reset(self) -> None:
        """See ``Store.reset``."""
        self._discard()

    def _discard(self) -> None:
        self._finish_running()
        self._sync_wanted = False
        self._manifest.discard()
        self._ids.discard()
        self._files.remove_tree(self._slots_path)
        self._fill(0, b"", [])
        self._folder.stamp()
        self._files.make_dir(self._slots_path)
        self._files.sync_dir(self._path)

    def close(self) -> None:
        """See ``Store.close``."""
        try:
            self.sync()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Release every handle without a sync: the tail is read again from the log."""
        with suppress(StoreError):  # it was raised before, or the tail does not matter
            self._finish_running()
        self._ids.close()
        self._manifest.close()
        self._files.close()
        self._folder.leave()

    # --- store ---------------------------------------------------------------------------------

    def append(
        self,
        frames: Sequence[Frame],
        named: Sequence[Named],
        marks: Sequence[Mark],
        stop_offset: int,
    ) -> None:
        """See ``Store.append``. Flushes and syncs first when a bound is reached, so that when the
        disk refuses, nothing of this call is taken.

        Raises:
            StoreError: the disk is full or fails.
        """
        filing, options = self._filing, self._options
        if filing.unsynced_bytes >= 2 * options.sync_bytes:
            self.sync()  # the disk can't keep up: wait for it
        elif filing.unsynced_bytes >= options.sync_bytes:
            self.sync_soon()
        self._advance_sync()
        if filing.buffer_bytes >= options.buffer_bytes_max:
            filing.flush_fullest(options.buffer_bytes_max * 3 // 4)
        if named or marks:
            self._ids.append(named, marks, stop_offset)
        filing.take(frames)
        if marks:
            filing.take([(key_ms, offset, mark, MARK_ONLY) for _, key_ms, offset, mark in marks])
        filing.pending += len(frames)
        self._stop_offset = stop_offset

    # --- due -----------------------------------------------------------------------------------

    def read_due(self, after: Key, upto_ms: int, limit: int) -> list[Frame]:
        """See ``Store.read_due``."""
        self._advance_sync()
        self._table.hand_ms = upto_ms
        self._hand.forget_before(after[0] // SLOT_MS)
        found = self._hand.read(after, upto_ms, limit)
        if len(found) < limit:
            self._hand.preload(upto_ms // SLOT_MS + 1)
        self._opener.ahead()
        return found

    def next_due_ms(self, after: Key) -> int | None:
        """See ``Store.next_due_ms``: exact inside a window, else a slot's start."""
        return self._hand.next_due_ms(after)

    def scan(self, after: Key, upto_ms: int) -> Iterator[Frame]:
        """See ``Store.scan``: with windows of its own, and without opening what is far."""
        hand = self._make_hand(self._is_whole)
        while found := hand.read(after, upto_ms, _SCAN_ROWS):
            yield from found
            after = found[-1][:2]
            hand.forget_before(after[0] // SLOT_MS)

    def scanner(self) -> Scanner:
        """See ``Store.scanner``: with windows of its own, which are told of every change."""
        scanner = WheelScanner(self._make_hand(self._is_whole))
        self._scanners.add(scanner)
        return scanner

    def _is_whole(self, slot: Slot) -> bool:
        return slot.finer is None or self._opener.is_ready(slot)

    def _make_hand(self, is_ready: Callable[[Slot], bool]) -> Hand:
        budget = self._options.near_bytes_max
        damage_of = self._mender.damage_of
        return Hand(self._table, is_ready, self._load, self._extend, damage_of, budget)

    def _load(self, slot: Slot, after: Key) -> Window:
        path, budget = self._filing.path_of(slot), self._options.near_bytes_max
        try:
            return load_window(self._files, path, slot, after, budget)
        except (BlockDamagedError, OSError) as exc:
            raise self._set_aside(slot, str(exc)) from exc

    def _extend(self, slot: Slot, window: Window, limit: int) -> None:
        try:
            extend_window(self._files, self._filing.path_of(slot), slot, window, limit)
        except (BlockDamagedError, OSError) as exc:
            raise self._set_aside(slot, str(exc)) from exc

    def _set_aside(self, slot: Slot, reason: str) -> SlotDamagedError:
        return self._mender.set_aside(slot, reason, self._stop_offset)

    def set_aside(self, start_ms: int, stop_ms: int) -> SlotDamagedError:
        """See ``Store.set_aside``: whole slots, whose files go to quarantine."""
        return self._mender.set_aside_range(start_ms, stop_ms, self._stop_offset)

    def rebuild(self, start_ms: int, stop_ms: int, frames: Sequence[Frame]) -> None:
        """See ``Store.rebuild``. Rows that came after the damage was reported are kept."""
        self._mender.rebuild(start_ms, stop_ms, frames, self._opener)

    # --- ids -----------------------------------------------------------------------------------

    def latest_unmarked(self, record_id: bytes, below: int) -> Key | None:
        """See ``Store.latest_unmarked``."""
        return self._ids.latest_unmarked(record_id, min(below, self._stop_offset))

    def marked_from(self, mark: int) -> list[tuple[int, Key]]:
        """See ``Store.marked_from``."""
        return self._ids.marked_from(mark, self._stop_offset)

    # --- prune and sync ------------------------------------------------------------------------

    def prune(self, cursor: Cursor) -> None:
        """See ``Store.prune``: whole slots whose exclusive end is at or below K."""
        self._advance_sync()
        self._cursor_key = cursor.key
        self._table.hand_ms = max(self._table.hand_ms, cursor.key[0])
        for slot in self._filing.prune(cursor.key[0] // SLOT_MS):
            self._forget(slot)
        if cursor.key > START_KEY:
            self._ids.prune(cursor)
        self._opener.ahead()

    def sync(self) -> int:
        """See ``Store.sync``: slot files, folders, ids, index, and last the horizon."""
        self._finish_running()
        self._sync_wanted = False
        plan = self._begin_sync()
        plan.run()
        self._finish_sync(plan)
        return self._durable_offset

    def sync_soon(self) -> None:
        """See ``Store.sync_soon``: rows are flushed a little with each call, and then a thread does
        the fsyncs: thousands of files take seconds, and a flush of the whole buffer 100 ms.
        """
        self._sync_wanted = self._running is None
        self._advance_sync()

    def _advance_sync(self) -> None:
        """Do a little for a sync that is wanted, or take note that it is done.

        Raises:
            StoreError: it failed; the process must exit, and this is raised by every later call.
        """
        if self._running is not None:
            if self._running[1].done():
                self._finish_running()
        elif self._sync_wanted:
            left = self._filing.buffer_bytes
            share = self._options.buffer_bytes_max // 8
            if left > share:
                self._filing.flush_fullest(left - share)
            else:
                self._sync_wanted = False
                plan = self._begin_sync()
                executor = self._executor or shared_executor()
                self._running = plan, executor.submit(plan.run)

    def _finish_running(self) -> None:
        if self._running is not None:
            plan, done = self._running
            done.result()
            self._running = None
            self._finish_sync(plan)

    def _begin_sync(self) -> SyncPlan:
        """Flush, and say what must be made durable."""
        filing = self._filing
        for slot in filing.dirty:
            filing.flush(slot)
        plan = SyncPlan(
            files=self._files,
            manifest=self._manifest,
            ids=self._ids,
            has_ids=self._ids.in_use,
            slot_paths=filing.written_paths(),
            folders=sorted(filing.dirty_folders, reverse=True),
            entries=filing.changed(),
            live=filing.live(),
            doomed=filing.doomed,
            stop_offset=self._stop_offset,
            label=self._label,
        )
        filing.forget_dirty()
        return plan

    def _finish_sync(self, plan: SyncPlan) -> None:
        """Take note that ``plan.run`` is done."""
        self._durable_offset = plan.stop_offset
        self._filing.remove_doomed(plan.doomed)

    def lumps(self, start_ms: int, stop_ms: int) -> list[Lump]:
        """See ``Store.lumps``: a lump for each slot. Nothing is read."""
        slots = self._table.within(start_ms // SLOT_MS, -(-stop_ms // SLOT_MS))
        return [
            (slot.second * SLOT_MS, slot.stop_second * SLOT_MS, slot.pending)
            for slot in slots
            if slot.pending
        ]

    def stats(self) -> StoreStats:
        """See ``Store.stats``; the oldest due time is no later than the true one."""
        self._advance_sync()
        filing = self._filing
        first = self._table.next_from(0)
        oldest_ms, passed = None, 0
        if first is not None:
            oldest_ms = max(first.start[0], min(self._cursor_key[0], first.stop_second * SLOT_MS))
            passed = self._hand.passed(first, self._cursor_key)
        stored = filing.file_bytes + filing.buffer_bytes
        return StoreStats(filing.pending - passed, stored, oldest_ms, self._durable_offset)
