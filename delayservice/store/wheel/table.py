"""The slots of a wheel in due order: hours, with finer slots inside of those that are near.

A file per second is right for the seconds ahead and wrong for the weeks behind them: ten million
records over a fortnight would be in five million files. So what is far is kept by the hour, what is
within the hour by the minute, and only what comes in for the next minutes by the second.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import TYPE_CHECKING

from delayservice.store.wheel.block import SLOT_MS
from delayservice.store.wheel.slots import HOUR, RATIO, Slot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from delayservice.store.wheel.manifest import Entry


class SlotTable:
    """Finds, adds and takes out slots.

    Args:
        hours_ahead_ms: a new hour that begins at most so long after the hand is open at once.
        minutes_ahead_ms: the same for a new minute.
    """

    def __init__(self, hours_ahead_ms: int, minutes_ahead_ms: int) -> None:
        self._ahead_ms = {HOUR: hours_ahead_ms, HOUR // RATIO: minutes_ahead_ms}
        self._root = Slot(0, 0)
        self._root.finer = {}
        self.hand_ms = 0
        """Where the hand was last seen, for what is near: a hint, nothing depends on it."""

    def fill(self, entries: Iterable[Entry]) -> list[Slot]:
        """Add the slots of an index to an empty table; they are returned."""
        slots = [Slot.of_entry(entry) for entry in entries]
        # The widest first: they are where the finer ones belong.
        for slot in sorted(slots, key=lambda slot: (-slot.width, slot.second)):
            parent = self._root
            width = HOUR
            while width > slot.width:
                parent = self._child(parent, slot.second, width)
                parent.finer = {} if parent.finer is None else parent.finer
                width //= RATIO
            self._put(parent, slot)
        return slots

    def place(self, second: int) -> Slot:
        """The slot that takes a record which is due in this second; made when missing.

        A damaged slot takes what belongs to its finer ones, until it is rebuilt with them.
        """
        slot = self._child(self._root, second, HOUR)
        while slot.finer is not None and slot.stop is None:
            start = second - second % (slot.width // RATIO)
            slot = slot.finer.get(start) or self._child(slot, second, slot.width // RATIO)
        return slot

    def _child(self, parent: Slot, second: int, width: int) -> Slot:
        start = second - second % width
        children = parent.finer
        found = children.get(start) if children is not None else None
        return found or self._put(parent, self._made(start, width))

    def _made(self, second: int, width: int) -> Slot:
        slot = Slot(second, width)
        if width > 1 and self.is_near(slot):
            slot.finer = {}
        return slot

    @staticmethod
    def _put(parent: Slot, slot: Slot) -> Slot:
        if parent.finer is None:
            raise AssertionError(parent.second)
        parent.finer[slot.second] = slot
        insort(parent.order, slot.second)
        return slot

    def is_near(self, slot: Slot) -> bool:
        """Whether the slot begins so soon that finer ones are to have its records."""
        return slot.second * SLOT_MS - self.hand_ms <= self._ahead_ms[slot.width]

    def next_from(self, second: int) -> Slot | None:
        """The first slot with records that ends after ``second``; one that is opening comes before
        its finer ones.
        """
        return next(self._held(self._root, second), None)

    def _held(self, parent: Slot, second: int) -> Iterator[Slot]:
        order, finer = parent.order, parent.finer or {}
        position = max(bisect_right(order, second) - 1, 0)
        while position < len(order):
            slot = finer[order[position]]
            position += 1
            if slot.stop_second <= second:
                continue
            if slot.is_held:
                yield slot
            if slot.finer is not None:
                yield from self._held(slot, second)

    def held(self) -> list[Slot]:
        """Every slot with records."""
        return list(self._held(self._root, -1))

    def within(self, start: int, stop: int) -> list[Slot]:
        """Every slot with records that reaches into seconds ``[start, stop)``, finer ones after
        theirs.
        """
        found = []
        for slot in self._held(self._root, start):
            if slot.second >= stop:
                break
            found.append(slot)
        return found

    def near_closed(self, least_cost: int) -> Slot | None:
        """The first slot that is opening, or that is near and large enough to be opened."""
        return self._near_closed(self._root, least_cost)

    def _near_closed(self, parent: Slot, least_cost: int) -> Slot | None:
        for second in parent.order:
            slot = (parent.finer or {})[second]
            if slot.width == 1 or not self.is_near(slot):
                return None
            if slot.stop is not None:
                continue
            if slot.is_held:
                if slot.finer is not None or slot.cost > least_cost:
                    return slot
            elif slot.finer is not None:
                found = self._near_closed(slot, least_cost)
                if found is not None:
                    return found
        return None

    def pop_before(self, second: int) -> list[Slot]:
        """Take out every slot that ends at or before ``second``; those that held records, in
        order.
        """
        return list(self._pop_before(self._root, second))

    def _pop_before(self, parent: Slot, second: int) -> Iterator[Slot]:
        finer = parent.finer or {}
        while parent.order and parent.order[0] < second:
            slot = finer[parent.order[0]]
            yield from self._pop_before(slot, second)
            if slot.stop_second > second:
                return
            del finer[parent.order.pop(0)]
            if slot.is_held:
                yield slot
