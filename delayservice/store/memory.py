"""Reference store in memory: a dictionary and a sorted list, lost with the process.

It implements ``Store`` in the simplest way. The other stores must behave as it does.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from delayservice.store.base import (
    NO_MARK,
    Frame,
    Mark,
    Named,
    Scanner,
    Sighting,
    Store,
    StoreStats,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from delayservice.engine.cursor import Cursor, Group, Key


class MemoryStore(Store):
    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._order: list[Key] = []
        self._payloads: dict[Key, bytes] = {}
        self._marks: dict[Key, int] = {}
        self._sightings: set[tuple[int, Key]] = set()
        self._stands_for: dict[bytes, Key] = {}
        self._names: dict[Key, tuple[bytes, Group]] = {}
        self._bytes = 0
        self._stop_offset = self._durable_offset = 0
        # Marks below this source offset have been passed by H.
        self._passed_offset = 0
        self._label = b""

    def open(self) -> int:
        self.reset()
        return 0

    @property
    def label(self) -> bytes:
        return self._label

    def set_label(self, label: bytes) -> None:
        self._label = label

    def append(
        self,
        frames: Sequence[Frame],
        named: Sequence[Named],
        marks: Sequence[Mark],
        stop_offset: int,
        sightings: Sequence[Sighting] = (),
    ) -> None:
        for frame in frames:
            self._put(frame)
        for _, key_ms, offset, mark in marks:
            self._marks[(key_ms, offset)] = mark
        for record_id, key_ms, offset, group in named:
            key = key_ms, offset
            self._names[key] = record_id, group
            if key not in self._marks:
                self._stands_for[record_id] = key
        for record_id, key_ms, offset, _ in marks:
            if self._stands_for.get(record_id) == (key_ms, offset):
                del self._stands_for[record_id]
        self._sightings |= {(seen_by, (key_ms, offset)) for seen_by, key_ms, offset in sightings}
        self._stop_offset = stop_offset

    def _put(self, frame: Frame) -> None:
        key_ms, offset, mark, payload = frame
        key = (key_ms, offset)
        if key in self._payloads:
            raise ValueError(f"record {offset} was stored before")
        insort(self._order, key)
        self._payloads[key] = payload
        self._bytes += len(payload)
        if mark != NO_MARK:
            self._marks[key] = mark

    def read_due(self, after: Key, upto_ms: int, limit: int) -> list[Frame]:
        start = self._position_after(after)
        stop = min(start + limit, bisect_left(self._order, (upto_ms + 1, -1)))
        return [self._frame(key) for key in self._order[start:stop]]

    def _position_after(self, after: Key) -> int:
        return bisect_left(self._order, (after[0], after[1] + 1))

    def _frame(self, key: Key) -> Frame:
        return (key[0], key[1], self._marks.get(key, NO_MARK), self._payloads[key])

    def next_due_ms(self, after: Key) -> int | None:
        position = self._position_after(after)
        return self._order[position][0] if position < len(self._order) else None

    def rebuild(self, start_ms: int, stop_ms: int, frames: Sequence[Frame]) -> None:
        start, stop = (bisect_left(self._order, (ms, -1)) for ms in (start_ms, stop_ms))
        for key in self._order[start:stop]:
            self._bytes -= len(self._payloads.pop(key))
            self._marks.pop(key, None)
        del self._order[start:stop]
        for frame in frames:
            if start_ms <= frame[0] < stop_ms:
                self._put(frame)

    def latest_unmarked(self, record_id: bytes, below: int) -> Key | None:
        key = self._stands_for.get(record_id)
        return key if key is not None and key[1] < below else None

    def group_of(self, record_id: bytes) -> Group | None:
        key = self._stands_for.get(record_id)
        return None if key is None else self._names[key][1]

    def marked_from(self, mark: int) -> list[tuple[int, Key]]:
        first = max(mark, self._passed_offset)
        return sorted((found, key) for key, found in self._marks.items() if found >= first)

    def sighted_from(self, seen_by: int) -> list[tuple[int, Key]]:
        return sorted(one for one in self._sightings if one[0] >= seen_by)

    def prune(self, cursor: Cursor) -> None:
        k, h = cursor
        self._passed_offset = min(h, self._stop_offset)
        self._sightings = set(self.sighted_from(self._passed_offset))
        passed = self._order[: self._position_after(k)]
        kept = [key for key in passed if key[0] == k[0] and key[1] >= h]
        self._order[: len(passed)] = kept
        for key in {*passed}.difference(kept):
            self._forget(key)

    def _forget(self, key: Key) -> None:
        self._bytes -= len(self._payloads.pop(key))
        self._marks.pop(key, None)
        record_id, _ = self._names.pop(key, (b"", None))
        if self._stands_for.get(record_id) == key:
            del self._stands_for[record_id]

    def sync(self, *, wait: bool = True) -> int:  # noqa: ARG002  # nothing takes time
        self._durable_offset = self._stop_offset
        return self._durable_offset

    def scanner(self, *, for_repair: bool = False) -> Scanner:  # noqa: ARG002  # no damage here
        return Scanner(self.read_due)

    def stats(self) -> StoreStats:
        return StoreStats(len(self._order), self._bytes, self._durable_offset)

    def close(self) -> None:
        self.reset()
