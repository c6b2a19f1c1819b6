"""Rows into slots, slots into files: what a wheel holds, in memory and on disk, and what of it a
sync has to make durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from delayservice.store.wheel.block import SLOT_MS, encode_blocks
from delayservice.store.wheel.near import ROW_BYTES, cost_of, count_records, sort_rows
from delayservice.store.wheel.slots import HOUR, Slot, hour_name, hour_of_name
from delayservice.store.wheel.table import SlotTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from delayservice.store.base import Frame
    from delayservice.store.files import Files
    from delayservice.store.wheel.manifest import Entry


class Filing:
    """The slots of one wheel.

    Args:
        folder: where the hour folders are.
        files: where effects go.
        table: the slots, empty.
        entries: of slots that the index has.
        before_flush: told of a slot whose rows are about to go to its file.
    """

    def __init__(
        self,
        folder: str,
        files: Files,
        table: SlotTable,
        entries: Iterable[Entry],
        before_flush: Callable[[Slot], None],
    ) -> None:
        self.table = table
        self.buffer_bytes = 0
        """Cost in memory of rows that are in no file."""
        self.unsynced_bytes = 0
        self.dirty: list[Slot] = []
        """What differs from the last sync; of two slots of one place the later one counts."""
        self.dirty_folders: set[str] = set()
        self.doomed: list[str] = []
        """Files that the index still speaks of: to be removed when it does no longer."""
        self._folder = folder
        self._files = files
        self._before_flush = before_flush
        slots = table.fill(entries)
        self.pending = sum(slot.count for slot in slots)
        self.file_bytes = sum(slot.size - slot.moved for slot in slots)
        hours = map(hour_of_name, files.list_dir(folder))
        self._hours = {hour for hour in hours if hour is not None}

    def path_of(self, slot: Slot) -> str:
        """A slot's file."""
        return f"{self._folder}/{hour_name(slot.second // HOUR)}/{slot.name}"

    def touch(self, slot: Slot) -> None:
        """Have the next sync speak of this slot."""
        if not slot.dirty:
            slot.dirty = True
            self.dirty.append(slot)

    # --- in ------------------------------------------------------------------------------------

    def take(self, rows: Sequence[Frame]) -> None:
        """Put rows into their slots; ``pending`` is the caller's to count."""
        place = self.table.place
        start_ms, stop_ms = 1, 0
        for row in rows:
            if not start_ms <= row[0] < stop_ms:
                slot = place(row[0] // SLOT_MS)
                start_ms = slot.second * SLOT_MS
                stop_ms = start_ms + slot.width * SLOT_MS
                take = slot.rows.append
                if not slot.dirty:
                    self.touch(slot)
            take(row)
        self.buffer_bytes += cost_of(rows)

    def flush_fullest(self, bytes_max: int) -> None:
        """Flush the fullest slots, so that writes are large, until what is left is within bounds.

        Raises:
            StoreError: the disk is full or fails; nothing is lost.
        """
        for slot in sorted(self.dirty, key=lambda slot: -len(slot.rows)):
            if self.buffer_bytes <= bytes_max:
                return
            self.flush(slot)

    def flush(self, slot: Slot) -> None:
        """Append a slot's rows to its file; those of a damaged one wait for its rebuild."""
        if not slot.rows or slot.stop is not None:
            return
        self._before_flush(slot)
        rows = sort_rows(slot.rows)
        data, crc, payload_bytes = encode_blocks(slot.second, rows, slot.crc)
        self._make_hour(slot)
        self._files.write_at(self.path_of(slot), slot.size, data)
        slot.first, slot.last = slot.bounds_with_rows()
        slot.crc = crc
        slot.size += len(data)
        slot.count += count_records(rows)
        slot.rows = []
        self.buffer_bytes -= payload_bytes + ROW_BYTES * len(rows)
        self.file_bytes += len(data)
        self.unsynced_bytes += len(data)

    def _make_hour(self, slot: Slot) -> None:
        hour = slot.second // HOUR
        folder = f"{self._folder}/{hour_name(hour)}"
        if hour not in self._hours:
            self._files.make_dir(folder)
            self._hours.add(hour)
            self.dirty_folders.add(self._folder)
        if not slot.size:
            self.dirty_folders.add(folder)

    # --- out -----------------------------------------------------------------------------------

    def drop(self, slot: Slot) -> None:
        """Forget a slot's content; its file is the caller's to remove."""
        self.buffer_bytes -= cost_of(slot.rows)
        self.file_bytes -= slot.size - slot.moved
        self.pending -= slot.pending
        slot.rows = []
        slot.stop = None
        slot.forget_file()
        self.touch(slot)

    def doom(self, slot: Slot) -> None:
        """Forget a slot whose records have all gone to finer ones. Its file must outlive the index
        that speaks of it, or a crash would find it missing.
        """
        if slot.size:
            self.doomed.append(self.path_of(slot))
        self.drop(slot)

    def prune(self, second: int) -> list[Slot]:
        """Forget every slot that ends at or before ``second``, files too; returns them."""
        gone = self.table.pop_before(second)
        for slot in gone:
            if slot.size and (slot.second // HOUR + 1) * HOUR > second:
                self._files.remove(self.path_of(slot))
            self.drop(slot)
        for hour in [h for h in self._hours if (h + 1) * HOUR <= second]:
            self._files.remove_tree(f"{self._folder}/{hour_name(hour)}")
            self._hours.discard(hour)
        return gone

    # --- sync ----------------------------------------------------------------------------------

    def forget_dirty(self) -> None:
        """What was dirty is in a sync plan now."""
        for slot in self.dirty:
            slot.dirty = False
        self.dirty, self.dirty_folders, self.doomed = [], set(), []
        self.unsynced_bytes = 0

    def changed(self) -> list[Entry]:
        """What the index must be told, flushed slots and vanished ones."""
        return [slot.entry() for slot in {(s.second, s.width): s for s in self.dirty}.values()]

    def written_paths(self) -> list[str]:
        """Slot files that may have been written to since the last sync."""
        return [self.path_of(slot) for slot in self.dirty if slot.size and slot.stop is None]

    def remove_doomed(self, paths: Sequence[str]) -> None:
        """Remove files that the index no longer speaks of, unless they are in use again."""
        if paths:
            used = {self.path_of(slot) for slot in self.table.held() if slot.size}
            for path in paths:
                if path not in used:
                    self._files.remove(path)

    def live(self) -> list[Entry]:
        """What the index must hold, when it is written afresh after a flush of everything."""
        return [slot.entry() for slot in self.table.held()]
