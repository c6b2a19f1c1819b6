"""One slot of the wheel: an hour, a minute or a second, in a file and in memory.

A slot that was never flushed has no file. A slot is *closed* while all of its records are its own;
it is *open* when finer slots take its records, and *opening* while its own are moved to them.
"""

from __future__ import annotations

import calendar
import time
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from delayservice.store.wheel.block import SLOT_MS, seed_of
from delayservice.store.wheel.manifest import DAMAGED, GONE, LIVE, Entry
from delayservice.store.wheel.near import ROW_BYTES, count_records

if TYPE_CHECKING:
    from delayservice.core.cursor import Key
    from delayservice.store.base import Frame

_offset_of, _mark_of = itemgetter(1), itemgetter(2)

HOUR: Final = 3600
RATIO: Final = 60
"""Finer slots in a slot: an hour has 60 minutes, a minute 60 seconds."""


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
    """The records due in ``[second, second + width)``, epoch seconds.

    ``rows`` are not in the file yet. The file's first ``size`` bytes are good: they hold ``count``
    records, whose offsets (and those of marks) lie in ``[first, last]``, and end in ``crc``. The
    first ``moved`` of them, which end in ``moved_crc``, went to finer slots and are not counted.
    ``stop`` is set while the slot is damaged: what lies below it is to be read again.
    """

    __slots__ = (
        "count",
        "crc",
        "dirty",
        "finer",
        "first",
        "last",
        "moved",
        "moved_crc",
        "order",
        "rows",
        "second",
        "size",
        "stop",
        "width",
    )

    def __init__(self, second: int, width: int) -> None:
        self.second = second
        self.width = width
        self.rows: list[Frame] = []
        self.stop: int | None = None
        self.dirty = False
        self.finer: dict[int, Slot] | None = None
        """Finer slots by their first second; None while this one is closed."""
        self.order: list[int] = []
        """The keys of ``finer``, sorted."""
        self.forget_file()

    def forget_file(self) -> None:
        """Start over with an empty file."""
        self.size = self.count = self.moved = 0
        self.first = self.last = -1
        self.crc = self.moved_crc = seed_of(self.second, self.width)

    @classmethod
    def of_entry(cls, entry: Entry) -> Slot:
        """A slot as the index has it."""
        slot = cls(entry.second, entry.width)
        slot.size, slot.count, slot.crc = entry.size, entry.records, entry.crc
        slot.moved, slot.moved_crc = entry.moved, entry.moved_crc
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
        elif not self.size:
            state = GONE
        return Entry(
            self.second,
            self.size,
            self.moved,
            self.count,
            first,
            last,
            self.crc,
            self.moved_crc,
            self.width,
            state,
        )

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
    def stop_second(self) -> int:
        """The exclusive end."""
        return self.second + self.width

    @property
    def is_held(self) -> bool:
        """Whether the slot holds records of its own, or did before it was damaged."""
        return bool(self.size or self.rows) or self.stop is not None

    @property
    def pending(self) -> int:
        """Records of its own in file and memory."""
        return self.count + count_records(self.rows)

    @property
    def cost(self) -> int:
        """About how many bytes of memory a window of the whole slot would take, cheap to ask."""
        return self.size - self.moved + ROW_BYTES * (self.count + len(self.rows))

    @property
    def name(self) -> str:
        """File in the hour's folder."""
        return f"{self.second}" if self.width == 1 else f"{self.second}.{self.width}"


def bounds_of(rows: list[Frame]) -> tuple[int, int]:
    """Lowest and highest offset that rows speak of, their marks included; (-1, -1) for none."""
    if not rows:
        return -1, -1
    offsets = list(map(_offset_of, rows))
    last_record, last_mark = max(offsets), max(map(_mark_of, rows))
    return min(offsets), max(last_record, last_mark)
