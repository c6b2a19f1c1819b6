"""The hand of the wheel: reads slots in order through the windows near it.

Windows are loaded when their slot is due, and the next one a little before; later rows of a loaded
slot are taken into its window. All windows together stay within one budget of bytes.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from delayservice.errors import SlotDamagedError
from delayservice.store.wheel.block import SLOT_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from delayservice.core.cursor import Key
    from delayservice.store.base import Frame
    from delayservice.store.wheel.near import Window
    from delayservice.store.wheel.slots import Slot
    from delayservice.store.wheel.table import SlotTable

_PRELOAD_ROWS = 4096


class Hand:
    """Reads due rows in key order.

    Args:
        slots: every slot of the wheel.
        is_ready: whether a slot that is due can be read as it is; opens it if not.
        load: the stretch of a slot that begins above a key, or raises ``SlotDamagedError``.
        extend: decodes so many more rows of it, or raises ``SlotDamagedError``.
        damage_of: the error of a slot that is known to be damaged.
        budget: bytes of memory for windows.
    """

    def __init__(
        self,
        slots: SlotTable,
        is_ready: Callable[[Slot], bool],
        load: Callable[[Slot, Key], Window],
        extend: Callable[[Slot, Window, int], None],
        damage_of: Callable[[Slot], SlotDamagedError],
        budget: int,
    ) -> None:
        self._slots = slots
        self._is_ready = is_ready
        self._load = load
        self._extend = extend
        self._damage_of = damage_of
        self._budget = budget
        self._windows: dict[Slot, Window] = {}

    def read(self, after: Key, upto_ms: int, limit: int) -> list[Frame]:
        """At most ``limit`` rows above ``after`` and due by ``upto_ms``, in key order.

        Raises:
            SlotDamagedError: the next row is in a damaged slot.
        """
        found: list[Frame] = []
        second = after[0] // SLOT_MS
        while (slot := self._slots.next_from(second)) is not None and slot.start[0] <= upto_ms:
            try:
                if not self._is_ready(slot):
                    continue  # its records are in finer slots now
                window = self._window(slot, after)
                found += self._take(slot, window, after, upto_ms, limit - len(found))
            except SlotDamagedError:
                if found:
                    return found  # these are good; the next call meets the damage again
                raise
            if len(found) >= limit:
                break
            if window.upper is None:
                second = slot.stop_second
            elif window.upper[0] > upto_ms:
                break
            else:
                after = max(after, window.upper)  # a large slot: go on with its next stretch
        return found

    def _take(
        self, slot: Slot, window: Window, after: Key, upto_ms: int, limit: int
    ) -> list[Frame]:
        found = window.take(after, upto_ms, limit)
        while window.needs_more(len(found), upto_ms, limit):
            window.drop_upto(max(after, slot.start))
            self._extend(slot, window, limit - len(found))
            found = window.take(after, upto_ms, limit)
        return found

    def next_due_ms(self, after: Key) -> int | None:
        """See ``Store.next_due_ms``."""
        second = after[0] // SLOT_MS
        while (slot := self._slots.next_from(second)) is not None:
            start = max(after, slot.start)
            window = self._windows.get(slot)
            if window is None or slot.stop is not None or not window.covers(start):
                return start[0]
            self._refresh(window, slot)
            first = window.take(start, slot.stop_second * SLOT_MS, 1)
            if first:
                return first[0][0]
            if window.upper is not None:
                return max(window.upper[0], start[0])
            second = slot.stop_second
        return None

    def preload(self, second: int) -> None:
        """Begin to load a slot before it is due, if there is room beside the windows that are in
        use: there is time now, and none when it is due.
        """
        slot = self._slots.next_from(second)
        if slot is None or slot.second > second or slot.stop is not None:
            return
        if slot in self._windows or slot.finer is not None:
            return
        if 2 * sum(window.cost for window in self._windows.values()) <= self._budget:
            with suppress(SlotDamagedError):  # raised again when it is due
                window = self._window(slot, slot.start)
                self._extend(slot, window, _PRELOAD_ROWS)

    def before_flush(self, slot: Slot) -> None:
        """The slot's rows are about to go to its file: keep those that a window needs."""
        window = self._windows.get(slot)
        if window is not None:
            self._refresh(window, slot)
            window.seen = 0

    def passed(self, slot: Slot, key: Key) -> int:
        """How many of a slot's records are known to be at or below ``key``."""
        window = self._windows.get(slot)
        if window is None or key < window.after:
            return 0
        return window.passed(key)

    def forget(self, slot: Slot) -> None:
        """Drop the window of a slot that changed under it or is gone."""
        self._windows.pop(slot, None)

    def forget_before(self, second: int) -> None:
        """Drop the windows of slots that have passed."""
        for passed in [s for s in self._windows if s.stop_second <= second]:
            del self._windows[passed]

    def _window(self, slot: Slot, after: Key) -> Window:
        if slot.stop is not None:
            raise self._damage_of(slot)
        start = max(after, slot.start)
        window = self._windows.get(slot)
        if window is not None and window.covers(start):
            if window.cost > self._budget:
                window.drop_upto(start)
            self._refresh(window, slot)
            if window.covers(start):
                return window
        self._windows.pop(slot, None)
        window = self._load(slot, start)
        self._make_room(window.cost)
        self._windows[slot] = window
        return window

    def _make_room(self, cost: int) -> None:
        for slot in sorted(self._windows, key=lambda slot: -slot.second):
            if cost + sum(window.cost for window in self._windows.values()) > self._budget:
                del self._windows[slot]

    def _refresh(self, window: Window, slot: Slot) -> None:
        rows = slot.rows
        if window.seen < len(rows):
            window.add(rows[window.seen :])
            window.seen = len(rows)
