from __future__ import annotations

import random
import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

# A value: number u64, due time in epoch milliseconds u64, tag of the load; then random bytes up to
# the size of the Batch. The key follows from the number, so the judge process needs only the Batch.
HEAD: Final = struct.Struct(">QQ8s")
SIZE_MIN: Final = HEAD.size
assert SIZE_MIN == 24  # noqa: S101, PLR2004 (the documented layout)

KEYS: Final = 1_024


class Batch(msgspec.Struct, frozen=True):
    """Description of one load, whose records have the numbers 0 to n-1.

    A record with another ``tag`` (8 ASCII characters) counts as a stranger. ``seed`` is for filler
    and due times.
    """

    tag: str
    n: int
    size: int
    seed: int

    def tag_bytes(self) -> bytes:
        return self.tag.encode("ascii")

    def filler(self) -> bytes:
        # Random, so that values are incompressible.
        # Seeded, to replay.
        return random.Random(self.seed).randbytes(self.size - SIZE_MIN)  # noqa: S311


def keys() -> list[bytes]:
    return [b"key-%d" % number for number in range(KEYS)]


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


_SEEN_MAX = 255


class BenchVerdict(msgspec.Struct, frozen=True):
    """Counts of a judge process for the records of one ``Batch``.

    ``seen`` includes duplicates; ``strangers`` are not of this batch; ``last_seen_s`` (epoch
    seconds) is without duplicates; ``lateness_ms`` has the number of arrivals by receive time minus
    due time.
    """

    n: int
    seen: int
    lost: int
    duplicated: int
    early: int
    altered: int
    strangers: int
    last_seen_s: float
    lateness_ms: dict[int, int]


class BatchTally:
    """Counter of the records of one load, which may end early if ``is_open``."""

    def __init__(self, batch: Batch, *, is_open: bool = False) -> None:
        self._n = batch.n
        self._is_open = is_open
        self._tag = batch.tag_bytes()
        self._filler = batch.filler()
        self._keys = keys()
        self._counts = bytearray(batch.n)
        self._lateness_ms: dict[int, int] = {}
        self._altered = 0
        self._strangers = 0
        self._last_seen_s = 0.0
        self.seen = 0
        self.distinct = 0

    @property
    def is_complete(self) -> bool:
        return not self._is_open and self.distinct == self._n

    def close(self, n: int) -> None:
        self._strangers += sum(self._counts[n:])
        self.distinct = n - self._counts.count(0, 0, n)
        del self._counts[n:]
        self._n, self._is_open = n, False

    def add(
        self,
        record_keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        seen_s: float,
    ) -> None:
        seen_ms = int(seen_s * 1_000)
        unpack, body_at = HEAD.unpack_from, HEAD.size
        tag, filler, known_keys = self._tag, self._filler, self._keys
        counts, n, late_counts = self._counts, self._n, self._lateness_ms
        distinct = self.distinct
        for key, value in zip(record_keys, values, strict=True):
            try:
                number, due_ms, found_tag = unpack(value)  # type: ignore[arg-type]  # None: caught
            except (struct.error, TypeError):
                self._altered += 1
                continue
            if found_tag != tag or number >= n:
                self._strangers += 1
                continue
            if value[body_at:] != filler or key != known_keys[number % KEYS]:  # type: ignore[index]
                self._altered += 1
            count = counts[number]
            if count == 0:
                distinct += 1
            if count < _SEEN_MAX:
                counts[number] = count + 1
            late_ms = seen_ms - due_ms
            late_counts[late_ms] = late_counts.get(late_ms, 0) + 1
        self.seen += len(values)
        if distinct > self.distinct:
            self._last_seen_s = seen_s
        self.distinct = distinct

    def verdict(self) -> BenchVerdict:
        lost = self._counts.count(0)
        return BenchVerdict(
            n=self._n,
            seen=self.seen,
            lost=lost,
            duplicated=self._n - lost - self._counts.count(1),
            early=sum(count for late, count in self._lateness_ms.items() if late < 0),
            altered=self._altered,
            strangers=self._strangers,
            last_seen_s=self._last_seen_s,
            lateness_ms=self._lateness_ms,
        )
