"""The slots of a wheel: what each holds on disk and in memory, and in which order they come due.

A slot that was never flushed has no file. Slots are kept in two levels, hours and seconds, as the
folders are, so that finding the next one and adding one stay cheap with weeks of them.
"""

from __future__ import annotations

import calendar
import time
from bisect import bisect_left, insort
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from delayservice.store.wheel.block import MARK_ONLY, SLOT_MS, seed_of
from delayservice.store.wheel.manifest import DAMAGED, GONE, LIVE, Entry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from delayservice.core.cursor import Key
    from delayservice.store.base import Frame

HOUR: Final = 3600


@lru_cache(maxsize=1024)
def hour_name(hour: int) -> str:
    """Folder of an hour, in UTC: ``2026-11-21T02``. ``hour`` counts hours since the epoch."""
    moment = time.gmtime(hour * HOUR)
    return f"{moment.tm_year:04d}-{moment.tm_mon:02d}-{moment.tm_mday:02d}T{moment.tm_hour:02d}"


def hour_of_name(name: str) -> int | None:
    """The hour of a folder name, or None when it is none of ours."""
    try:
        day, hour = name.split("T")
        year, month, monthday = map(int, day.split("-"))
        return calendar.timegm((year, month, monthday, int(hour), 0, 0)) // HOUR
    except ValueError:
        return None


class Slot:
    """One second of the wheel.

    ``rows`` are not in the file yet. The file's first ``size`` bytes are good: they hold ``count``
    records, whose offsets (and those of marks) lie in ``[first, last]``, and end in ``crc``.
    ``stop`` is set while the slot is damaged: what lies below it is to be read again.
    """

    __slots__ = ("count", "crc", "first", "last", "rows", "second", "size", "stop")

    def __init__(self, second: int) -> None:
        self.second = second
        self.rows: list[Frame] = []
        self.stop: int | None = None
        self.forget_file()

    def forget_file(self) -> None:
        """Start over with an empty file."""
        self.size = self.count = 0
        self.first = self.last = -1
        self.crc = seed_of(self.second)

    @classmethod
    def of_entry(cls, entry: Entry) -> Slot:
        """A slot as the index has it."""
        slot = cls(entry.second)
        slot.size, slot.count, slot.crc = entry.size, entry.records, entry.crc
        slot.first, slot.last = entry.first, entry.last
        if entry.state == DAMAGED:
            slot.stop = entry.last + 1
        return slot

    def entry(self) -> Entry:
        """What the index is to say. Rows of a damaged slot are not written: they are to be read
        again with the rest.
        """
        state, first, last = LIVE, self.first, self.last
        if self.stop is not None:
            state = DAMAGED
            first, last = self.bounds_with_rows()
        return Entry(self.second, self.size, self.count, first, last, self.crc, state)

    def bounds_with_rows(self) -> tuple[int, int]:
        """Lowest and highest offset of a record or mark in the file or in memory."""
        bounds = bounds_of(self.rows)
        if self.first < 0:
            return bounds
        if not self.rows:
            return self.first, self.last
        return min(self.first, bounds[0]), max(self.last, bounds[1])

    @property
    def start(self) -> Key:
        """A key below every key of the slot, and above every key of the slot before."""
        return (self.second * SLOT_MS, -1)

    @property
    def pending(self) -> int:
        """Records in file and memory."""
        return self.count + count_records(self.rows)


def count_records(rows: list[Frame]) -> int:
    """Rows that are records and not marks only."""
    return sum(1 for row in rows if row[3] is not MARK_ONLY)


def bounds_of(rows: list[Frame]) -> tuple[int, int]:
    """Lowest and highest offset that rows speak of, their marks included; (-1, -1) for none."""
    if not rows:
        return -1, -1
    _, offsets, marks, _ = zip(*rows, strict=True)
    last_record, last_mark = max(offsets), max(marks)
    return min(offsets), max(last_record, last_mark)


class SlotTable(dict[int, Slot]):
    """Slots by second, with their order."""

    def __init__(self) -> None:
        super().__init__()
        self._hours: list[int] = []
        self._seconds: dict[int, list[int]] = {}

    def add(self, slot: Slot) -> Slot:
        """Add a slot that is not here yet."""
        self[slot.second] = slot
        hour = slot.second // HOUR
        seconds = self._seconds.get(hour)
        if seconds is None:
            insort(self._hours, hour)
            self._seconds[hour] = [slot.second]
        else:
            insort(seconds, slot.second)
        return slot

    def fill(self, slots: list[Slot]) -> None:
        """Add the slots of an index, in any order, to an empty table."""
        for slot in sorted(slots, key=lambda slot: slot.second):
            self[slot.second] = slot
            self._seconds.setdefault(slot.second // HOUR, []).append(slot.second)
        self._hours = sorted(self._seconds)

    def next_from(self, second: int) -> int | None:
        """The first slot at or after ``second``."""
        hours = self._hours
        position = bisect_left(hours, second // HOUR)
        if position == len(hours):
            return None
        seconds = self._seconds[hours[position]]
        if seconds[-1] >= second:
            return seconds[bisect_left(seconds, second)]
        return self._seconds[hours[position + 1]][0] if position + 1 < len(hours) else None

    def pop_before(self, second: int) -> Iterator[Slot]:
        """Take out every slot before ``second``, in order."""
        while self._hours and self._hours[0] * HOUR < second:
            seconds = self._seconds[self._hours[0]]
            gone = bisect_left(seconds, second)
            if gone == len(seconds):
                del self._seconds[self._hours.pop(0)]
            slots = [self.pop(s) for s in seconds[:gone]]
            if gone < len(seconds):
                del seconds[:gone]
                yield from slots
                return
            yield from slots


def gone_entry(second: int) -> Entry:
    """What the index says of a slot that was pruned."""
    return Entry(second, 0, 0, -1, -1, 0, GONE)


def slot_range(second: int) -> tuple[int, int]:
    """``[start, stop)`` of a slot in milliseconds."""
    return second * SLOT_MS, (second + 1) * SLOT_MS
