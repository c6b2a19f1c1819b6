"""``WheelStore``: the parts of the wheel put together behind the store interface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from delayservice.core.cursor import START_KEY, Cursor, Key
from delayservice.errors import SlotDamagedError
from delayservice.store.base import Frame, Mark, Named, Store, StoreStats
from delayservice.store.files import Files
from delayservice.store.folder import StoreFolder
from delayservice.store.ids import IdIndex
from delayservice.store.wheel.block import MARK_ONLY, SLOT_MS, BlockDamagedError, encode_blocks
from delayservice.store.wheel.hand import Hand
from delayservice.store.wheel.manifest import Manifest
from delayservice.store.wheel.near import Window, cost_of, load_window
from delayservice.store.wheel.slots import (
    HOUR,
    Slot,
    SlotTable,
    count_records,
    gone_entry,
    hour_name,
    hour_of_name,
    slot_range,
)
from delayservice.store.wheel.syncing import SyncPlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

FORMAT: Final = 1
_SCAN_ROWS = 1000


@dataclass(frozen=True, slots=True)
class WheelOptions:
    """Bounds of one shard's wheel.

    Attributes:
        buffer_bytes_max: memory for rows that are not in a file yet.
        near_bytes_max: memory for the windows near the hand; a single window may briefly take
            twice as much while it is loaded.
        sync_bytes: bytes written to slot files, and so to read again after a crash, at which
            ``append`` syncs by itself.
        handles_max: slot files kept open.
    """

    buffer_bytes_max: int = 32 << 20
    near_bytes_max: int = 32 << 20
    sync_bytes: int = 256 << 20
    handles_max: int = 128


class WheelStore(Store):
    """A shard's pending records in one file per second.

    Args:
        path: folder of this shard's store; nothing in it is named after a topic.
        options: bounds.
        files: where effects go; tests put their own here.
    """

    def __init__(
        self, path: Path, options: WheelOptions | None = None, files: Files | None = None
    ) -> None:
        self._options = options or WheelOptions()
        self._files = files or Files(self._options.handles_max)
        self._folder = StoreFolder(path, "wheel", FORMAT, self._files)
        self._manifest = Manifest(str(path), self._files)
        self._ids = IdIndex(path / "ids")
        self._path = str(path)
        self._slots_path = f"{path}/slots"
        self._clear(0)

    def _clear(self, stop_offset: int) -> None:
        self._slots = SlotTable()
        self._hand = self._make_hand()
        self._hours: set[int] = set()
        self._dirty_slots: set[int] = set()
        self._dirty_folders: set[str] = set()
        self._gone: set[int] = set()
        self._stop_offset = self._durable_offset = stop_offset
        self._buffer_bytes = self._unsynced_bytes = self._file_bytes = self._pending = 0

    # --- life ----------------------------------------------------------------------------------

    def open(self) -> int:
        """See ``Store.open``. Reads horizon and index, but no slot file."""
        known = self._folder.enter()
        state = self._manifest.load() if known else None
        if state is not None and self._ids.recover(state[0], expected=state[1]):
            self._clear(state[0])
            slots = [Slot.of_entry(entry) for entry in state[2].values()]
            self._slots.fill(slots)
            self._pending = sum(slot.count for slot in slots)
            self._file_bytes = sum(slot.size for slot in slots)
            self._manifest.remove_strays()
            hours = map(hour_of_name, self._files.list_dir(self._slots_path))
            self._hours = {hour for hour in hours if hour is not None}
        else:
            self._discard()
        return self._stop_offset

    def reset(self) -> None:
        """See ``Store.reset``."""
        self._discard()

    def _discard(self) -> None:
        self._manifest.discard()
        self._ids.discard()
        self._files.remove_tree(self._slots_path)
        self._clear(0)
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
        self._ids.close()
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
        if self._unsynced_bytes >= self._options.sync_bytes:
            self.sync()
        if self._buffer_bytes >= self._options.buffer_bytes_max:
            self._flush_largest()
        if named or marks:
            self._ids.append(named, marks)
        self._take(frames)
        if marks:
            self._take([(key_ms, offset, mark, MARK_ONLY) for _, key_ms, offset, mark in marks])
        self._pending += len(frames)
        self._stop_offset = stop_offset

    def _take(self, rows: Sequence[Frame]) -> None:
        slots, touch = self._slots, self._dirty_slots.add
        last = None
        for row in rows:
            second = row[0] // SLOT_MS
            if second != last:
                slot = slots.get(second) or slots.add(Slot(second))
                take = slot.rows.append
                touch(second)
                last = second
            take(row)
        self._buffer_bytes += cost_of(rows)

    def _flush_largest(self) -> None:
        """Flush the fullest slots, so that writes are large, until half the budget is free."""
        dirty = (self._slots[second] for second in self._dirty_slots if second in self._slots)
        for slot in sorted(dirty, key=lambda slot: -len(slot.rows)):
            if self._buffer_bytes <= self._options.buffer_bytes_max // 2:
                return
            self._flush(slot)

    def _flush(self, slot: Slot) -> None:
        if not slot.rows or slot.stop is not None:
            return
        self._hand.before_flush(slot)
        rows = sorted(slot.rows)
        data, crc = encode_blocks(slot.second, rows, slot.crc)
        self._make_hour(slot.second // HOUR)
        self._files.write_at(self._slot_path(slot.second), slot.size, data)
        slot.first, slot.last = slot.bounds_with_rows()
        slot.crc = crc
        slot.size += len(data)
        slot.count += count_records(rows)
        self._buffer_bytes -= cost_of(rows)
        self._file_bytes += len(data)
        self._unsynced_bytes += len(data)
        slot.rows = []

    def _make_hour(self, hour: int) -> None:
        folder = f"{self._slots_path}/{hour_name(hour)}"
        if hour not in self._hours:
            self._files.make_dir(folder)
            self._hours.add(hour)
            self._dirty_folders.add(self._slots_path)
        self._dirty_folders.add(folder)

    def _slot_path(self, second: int) -> str:
        return f"{self._slots_path}/{hour_name(second // HOUR)}/{second}"

    # --- due -----------------------------------------------------------------------------------

    def read_due(self, after: Key, upto_ms: int, limit: int) -> list[Frame]:
        """See ``Store.read_due``."""
        self._hand.forget_before(after[0] // SLOT_MS)
        found = self._hand.read(after, upto_ms, limit)
        if len(found) < limit:
            self._hand.preload(upto_ms // SLOT_MS + 1)
        return found

    def next_due_ms(self, after: Key) -> int | None:
        """See ``Store.next_due_ms``: exact inside a window, else a slot's start."""
        return self._hand.next_due_ms(after)

    def scan(self, after: Key, upto_ms: int) -> Iterator[Frame]:
        """See ``Store.scan``: with windows of its own."""
        hand = self._make_hand()
        while found := hand.read(after, upto_ms, _SCAN_ROWS):
            yield from found
            after = found[-1][:2]
            hand.forget_before(after[0] // SLOT_MS)

    def _make_hand(self) -> Hand:
        return Hand(self._slots, self._load, self._damage_of, self._options.near_bytes_max)

    def _load(self, slot: Slot, after: Key) -> Window:
        path, budget = self._slot_path(slot.second), self._options.near_bytes_max
        try:
            return load_window(self._files, path, slot, after, budget)
        except (BlockDamagedError, OSError) as exc:
            raise self._set_aside(slot, str(exc)) from exc

    # --- damage --------------------------------------------------------------------------------

    def _set_aside(self, slot: Slot, reason: str) -> SlotDamagedError:
        """Mark a slot whose file is missing or damaged; with it the missing ones that follow, for
        a lost folder is better read again at once than second by second.
        """
        path = self._slot_path(slot.second)
        missing = not self._files.exists(path)
        if not missing:
            self._folder.quarantine(path, str(slot.second))
        last = slot
        self._mark_damaged(slot)
        while missing:
            second = self._slots.next_from(last.second + 1)
            if second is None:
                break
            following = self._slots[second]
            if not following.size or self._files.exists(self._slot_path(second)):
                break
            self._mark_damaged(following)
            last = following
        return self._damaged(slot, last, f"slot {slot.second}: {reason}")

    def _damage_of(self, slot: Slot) -> SlotDamagedError:
        return self._damaged(slot, slot, f"slot {slot.second} waits to be read again")

    def _mark_damaged(self, slot: Slot) -> None:
        slot.stop = self._stop_offset
        self._dirty_slots.add(slot.second)
        self._hand.forget(slot.second)

    def _damaged(self, first: Slot, last: Slot, reason: str) -> SlotDamagedError:
        bounds = []
        second: int | None = first.second
        while second is not None and second <= last.second:
            bounds.append(self._slots[second].bounds_with_rows())
            second = self._slots.next_from(second + 1)
        return SlotDamagedError(
            reason,
            start_ms=slot_range(first.second)[0],
            stop_ms=slot_range(last.second)[1],
            first_offset=max(0, min(low for low, _ in bounds)),
            stop_offset=max(high for _, high in bounds) + 1,
        )

    def rebuild(self, start_ms: int, stop_ms: int, frames: Sequence[Frame]) -> None:
        """See ``Store.rebuild``. Rows that came after the damage was reported are kept."""
        second = self._slots.next_from(start_ms // SLOT_MS)
        while second is not None and second * SLOT_MS < stop_ms:
            self._empty(self._slots[second])
            second = self._slots.next_from(second + 1)
        inside = [frame for frame in frames if start_ms <= frame[0] < stop_ms]
        self._take(inside)
        self._pending += len(inside)

    def _empty(self, slot: Slot) -> None:
        self._drop_rows(slot)
        kept = []
        if slot.stop is not None:
            kept = [row for row in slot.rows if max(row[1], row[2]) >= slot.stop]
        else:
            self._files.remove(self._slot_path(slot.second))
        slot.rows = []
        slot.forget_file()
        slot.stop = None
        self._dirty_slots.add(slot.second)
        self._hand.forget(slot.second)
        self._take(kept)
        self._pending += count_records(kept)

    def _drop_rows(self, slot: Slot) -> None:
        self._buffer_bytes -= cost_of(slot.rows)
        self._file_bytes -= slot.size
        self._pending -= slot.pending

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
        second = cursor.key[0] // SLOT_MS
        for slot in self._slots.pop_before(second):
            self._drop_rows(slot)
            self._gone.add(slot.second)
            self._dirty_slots.discard(slot.second)
            self._hand.forget(slot.second)
            if slot.size and slot.second // HOUR * HOUR + HOUR > second:
                self._files.remove(self._slot_path(slot.second))
        for hour in [h for h in self._hours if (h + 1) * HOUR <= second]:
            self._files.remove_tree(f"{self._slots_path}/{hour_name(hour)}")
            self._hours.discard(hour)
        if cursor.key > START_KEY:
            self._ids.prune(cursor)

    def sync(self) -> int:
        """See ``Store.sync``: slot files, folders, ids, index, and last the horizon."""
        plan = self.begin_sync()
        plan.run()
        self.finish_sync(plan)
        return self._durable_offset

    def begin_sync(self) -> SyncPlan:
        """Flush, and say what must be made durable. The plan's ``run`` may be left to a thread,
        as long as no other sync begins before ``finish_sync``.
        """
        touched = [self._slots[second] for second in sorted(self._dirty_slots)]
        for slot in touched:
            self._flush(slot)
        gone = sorted(self._gone - self._slots.keys())
        plan = SyncPlan(
            files=self._files,
            manifest=self._manifest,
            ids=self._ids,
            slot_paths=[self._slot_path(s.second) for s in touched if s.size and s.stop is None],
            folders=sorted(self._dirty_folders, reverse=True),
            entries=[slot.entry() for slot in touched] + [gone_entry(s) for s in gone],
            live=lambda: [slot.entry() for slot in self._slots.values()],
            live_count=len(self._slots),
            stop_offset=self._stop_offset,
        )
        self._dirty_slots, self._dirty_folders, self._gone = set(), set(), set()
        self._unsynced_bytes = 0
        return plan

    def finish_sync(self, plan: SyncPlan) -> None:
        """Take note that ``plan.run`` is done."""
        self._durable_offset = plan.stop_offset

    def stats(self) -> StoreStats:
        """See ``Store.stats``; the oldest due time is the start of its slot."""
        second = self._slots.next_from(0)
        oldest_ms = None if second is None else second * SLOT_MS
        stored = self._file_bytes + self._buffer_bytes
        return StoreStats(self._pending, stored, oldest_ms, self._durable_offset)
