"""When records are due whose key is a roll time: a store keeps them by their keys, which say when
they are looked at next and not when they are delivered.

Counts by the minute of the key and the hour of the due time: a minute is forgotten as a whole when
K has passed it, for by then its records were rolled, and their copies are counted in their place.
What is cancelled before counts until then.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from delayservice.core.pending import Lump

_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 86_400_000
_BY_DAY_HOURS: Final = 48
ENTRIES_MAX: Final = 50_000
"""A few megabytes. Beyond, what is new counts at its roll time."""


class FarDues:
    """The counts of one shard."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[int, int, int]] = Counter()

    def add(self, key_ms: int, due_ms: int) -> None:
        """Count a record in."""
        width_ms = _DAY_MS if due_ms - key_ms > _BY_DAY_HOURS * _HOUR_MS else _HOUR_MS
        place = (key_ms // _MINUTE_MS, due_ms // width_ms * width_ms, width_ms)
        if place in self._counts or len(self._counts) < ENTRIES_MAX:
            self._counts[place] += 1

    def pass_key(self, key_ms: int) -> None:
        """K is there: forget the minutes before."""
        minute = key_ms // _MINUTE_MS
        if self._counts and min(self._counts)[0] < minute:
            kept = {place: count for place, count in self._counts.items() if place[0] >= minute}
            self._counts = Counter(kept)

    def lumps(self, start_ms: int, stop_ms: int) -> list[Lump]:
        """What to add to counts by key in ``[start_ms, stop_ms)``, which are whole minutes, to get
        counts by due time: negative where the keys are, positive where the due times are.
        """
        found: list[Lump] = []
        for (minute, due_ms, width_ms), count in self._counts.items():
            key_ms = minute * _MINUTE_MS
            if start_ms <= key_ms < stop_ms:
                found.append((key_ms, key_ms + _MINUTE_MS, -count))
                found.append((max(due_ms, key_ms), due_ms + width_ms, count))
        return found
