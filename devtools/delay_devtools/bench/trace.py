from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

import msgspec


class SliceDelivery(NamedTuple):
    """Records of a slice produced in one millisecond, and when the first of them was received."""

    produced_ms: int
    seen_ms: int


class DeliveryPause(NamedTuple):
    """Pause around a moment, in ms, by the records' timestamps and by the times of their
    receipt.
    """

    produced_ms: int
    seen_ms: int


class Trace(msgspec.Struct, frozen=True):
    slices: dict[int, list[SliceDelivery]]

    def first_after(self, slice_no: int, at_ms: float) -> SliceDelivery | None:
        # Of records that are produced at nearly the same time, those of another partition of the
        # target may be received first.
        found = self.slices.get(slice_no, [])
        later = found[bisect_right(found, int(at_ms), key=lambda one: one.produced_ms) :]
        return min(later, key=lambda one: one.seen_ms, default=None)

    def pause_at(self, slice_no: int, at_ms: float) -> DeliveryPause | None:
        # Records produced up to that millisecond are the old owner's, later ones the new owner's.
        found = self.slices.get(slice_no, [])
        place = bisect_right(found, int(at_ms), key=lambda one: one.produced_ms)
        before, after = found[:place], found[place:]
        if not before or not after:
            return None
        seen_ms = min(one.seen_ms for one in after) - max(one.seen_ms for one in before)
        return DeliveryPause(after[0].produced_ms - before[-1].produced_ms, max(seen_ms, 0))


class Tracer:
    def __init__(self) -> None:
        self._seen_ms: dict[int, dict[int, int]] = {}

    def add(self, places: Iterable[tuple[int, int]], seen_ms: int) -> None:
        for slice_no, produced_ms in places:
            self._seen_ms.setdefault(slice_no, {}).setdefault(produced_ms, seen_ms)

    def trace(self) -> Trace:
        return Trace(
            {
                slice_no: [SliceDelivery(*pair) for pair in sorted(times.items())]
                for slice_no, times in self._seen_ms.items()
            }
        )
