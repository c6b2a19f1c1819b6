"""Damaged slots: put aside, reported with what to read again, and filled anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delayservice.core.cursor import OFFSET_MAX
from delayservice.errors import SlotDamagedError
from delayservice.store.wheel.block import SLOT_MS
from delayservice.store.wheel.near import count_records

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from delayservice.store.base import Frame
    from delayservice.store.files import Files
    from delayservice.store.folder import StoreFolder
    from delayservice.store.wheel.filing import Filing
    from delayservice.store.wheel.opening import Opener
    from delayservice.store.wheel.slots import Slot


class Mender:
    """Sets damaged slots aside and takes what was read again.

    Args:
        filing: the slots.
        files: where effects go.
        folder: the store's, with its quarantine.
        forget: told of a slot whose content changes under its window.
    """

    def __init__(
        self,
        filing: Filing,
        files: Files,
        folder: StoreFolder,
        forget: Callable[[Slot], None],
    ) -> None:
        self._filing = filing
        self._files = files
        self._folder = folder
        self._forget = forget

    def set_aside(self, slot: Slot, reason: str, stop_offset: int) -> SlotDamagedError:
        """Mark a slot whose file is missing or damaged; with it the missing ones that follow, for
        a lost folder is better read again at once than slot by slot.

        Args:
            slot: the first that is damaged.
            reason: for the message.
            stop_offset: what the store holds: offsets from here on are not missing.
        """
        path = self._filing.path_of(slot)
        missing = not self._files.exists(path)
        if not missing:
            self._folder.quarantine(path, slot.name)
        last = slot
        self._mark(slot, stop_offset)
        while missing:
            following = self._filing.table.next_from(last.stop_second)
            if following is None or not following.size:
                break
            if self._files.exists(self._filing.path_of(following)):
                break
            self._mark(following, stop_offset)
            last = following
        return self._damaged(slot, last, f"slot {slot.name}: {reason}")

    def set_aside_range(self, start_ms: int, stop_ms: int, stop_offset: int) -> SlotDamagedError:
        """Set aside every slot that reaches into ``[start_ms, stop_ms)``; see
        ``Store.set_aside``.
        """
        reason = "set aside for a repair"
        slots = self._filing.table.within(start_ms // SLOT_MS, -(-stop_ms // SLOT_MS))
        errors = [self.set_aside(slot, reason, stop_offset) for slot in slots if slot.stop is None]
        errors += [self.damage_of(slot) for slot in slots]
        return SlotDamagedError(
            reason,
            start_ms=min([start_ms, *(error.start_ms for error in errors)]),
            stop_ms=max([stop_ms, *(error.stop_ms for error in errors)]),
            first_offset=min([error.first_offset for error in errors], default=OFFSET_MAX),
            stop_offset=max([error.stop_offset for error in errors], default=0),
        )

    def damage_of(self, slot: Slot) -> SlotDamagedError:
        """The error of a slot that was set aside and not rebuilt yet."""
        return self._damaged(slot, slot, f"slot {slot.name} waits to be read again")

    def _mark(self, slot: Slot, stop_offset: int) -> None:
        slot.stop = stop_offset
        self._filing.touch(slot)
        self._forget(slot)

    def _damaged(self, first: Slot, last: Slot, reason: str) -> SlotDamagedError:
        # Finer slots of one that was opening are emptied with it, and so read again with it.
        slots = self._filing.table.within(first.second, last.stop_second)
        bounds = [slot.bounds_with_rows() for slot in slots]
        return SlotDamagedError(
            reason,
            start_ms=first.second * SLOT_MS,
            stop_ms=last.stop_second * SLOT_MS,
            first_offset=max(0, min(low for low, _ in bounds)),
            stop_offset=max(high for _, high in bounds) + 1,
        )

    def rebuild(self, start_ms: int, stop_ms: int, frames: Sequence[Frame], opener: Opener) -> None:
        """See ``Store.rebuild``. Rows that came after the damage was reported are kept."""
        start, stop = start_ms // SLOT_MS, -(-stop_ms // SLOT_MS)
        self._split(start, stop, opener)
        kept: list[Frame] = []
        for slot in self._filing.table.within(start, stop):
            kept += self._empty(slot)
        inside = [frame for frame in frames if start_ms <= frame[0] < stop_ms]
        for rows in (inside, kept):
            self._filing.take(rows)
            self._filing.pending += count_records(rows)

    def _split(self, start: int, stop: int, opener: Opener) -> None:
        """Open what reaches beyond the range. A damaged slot never does: the range is its own."""
        for second in (start, stop):
            slot = self._filing.table.next_from(second)
            while slot is not None and slot.second < second and slot.stop is None:
                opener.finish(slot)
                slot = self._filing.table.next_from(second)

    def _empty(self, slot: Slot) -> list[Frame]:
        kept: list[Frame] = []
        if slot.stop is not None:
            stop = slot.stop
            kept = [row for row in slot.rows if max(row[1], row[2]) >= stop]
        elif slot.size:
            self._files.remove(self._filing.path_of(slot))
        self._forget(slot)
        self._filing.drop(slot)
        return kept
