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

_Due = tuple[int, int]
"""Start and width of the hour or day of a due time, milliseconds."""


class FarDues:
    """The counts of one shard."""

    def __init__(self) -> None:
        self._minutes: dict[int, Counter[_Due]] = {}
        self._entries = 0
        self._passed = 0

    def add(self, key_ms: int, due_ms: int) -> None:
        """Count a record in."""
        width_ms = _DAY_MS if due_ms - key_ms > _BY_DAY_HOURS * _HOUR_MS else _HOUR_MS
        due = (due_ms // width_ms * width_ms, width_ms)
        dues = self._minutes.setdefault(key_ms // _MINUTE_MS, Counter())
        if due not in dues:
            if self._entries >= ENTRIES_MAX:
                return
            self._entries += 1
        dues[due] += 1

    def pass_key(self, key_ms: int) -> None:
        """K is there: forget the minutes before."""
        minute = key_ms // _MINUTE_MS
        if minute <= self._passed:
            return
        self._passed = minute
        for passed in [known for known in self._minutes if known < minute]:
            self._entries -= len(self._minutes.pop(passed))

    def lumps(self, start_ms: int, stop_ms: int) -> list[Lump]:
        """What to add to counts by key in ``[start_ms, stop_ms)``, which are whole minutes, to get
        counts by due time: negative where the keys are, positive where the due times are.
        """
        found: list[Lump] = []
        together: Counter[_Due] = Counter()
        for minute, dues in self._minutes.items():
            key_ms = minute * _MINUTE_MS
            if start_ms <= key_ms < stop_ms:
                found.append((key_ms, key_ms + _MINUTE_MS, -dues.total()))
                together.update(dues)
        found += [
            (max(due_ms, start_ms), due_ms + width_ms, count)
            for (due_ms, width_ms), count in together.items()
        ]
        return found
