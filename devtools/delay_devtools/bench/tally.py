from __future__ import annotations

import random
import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final

# A value: number u64, due time in epoch milliseconds u64, tag of the load; then random bytes up to
# the size of the Batch. The key follows from the number, so the judge process needs only the Batch.
HEAD: Final = struct.Struct(">QQ8s")
SIZE_MIN: Final = HEAD.size
assert SIZE_MIN == 24  # noqa: S101, PLR2004 (the documented layout)

KEYS: Final = 1_024


@dataclass(frozen=True, slots=True)
class Batch:
    """Description of one load, whose records have the numbers 0 to n-1.

    A record with another ``tag`` (8 ASCII characters) counts as a stranger. ``seed`` is for filler
    and due times. The lateness of the first ``warm_up`` records is not counted.
    """

    tag: str
    n: int
    size: int
    seed: int
    warm_up: int = 0

    def tag_bytes(self) -> bytes:
        return self.tag.encode("ascii")

    def filler(self) -> bytes:
        # Random, so that values are incompressible.
        # Seeded, to replay.
        return random.Random(self.seed).randbytes(self.size - SIZE_MIN)  # noqa: S311


@cache
def keys() -> list[bytes]:
    return [b"key-%d" % number for number in range(KEYS)]


@dataclass(slots=True)
class Trace:
    """Deliveries by slice: when the first record that was produced in a millisecond was received.
    All times are epoch milliseconds.
    """

    seen_ms: dict[int, dict[int, int]] = field(default_factory=dict)

    def add(self, places: Iterable[tuple[int, int]], seen_ms: int) -> None:
        for slice_no, produced_ms in places:
            self.seen_ms.setdefault(slice_no, {}).setdefault(produced_ms, seen_ms)

    def first_seen_ms(self, slice_no: int, at_ms: float) -> int | None:
        """Return when the first record that was produced later was received."""
        later = (seen for made, seen in self.seen_ms.get(slice_no, {}).items() if made > int(at_ms))
        return min(later, default=None)

    def pause_ms(self, slice_no: int, at_ms: float) -> int | None:
        """Return the distance of the records that were produced right before and after."""
        # Records produced up to that millisecond are the old owner's, later ones the new owner's.
        found = sorted(self.seen_ms.get(slice_no, {}))
        place = bisect_right(found, int(at_ms))
        return found[place] - found[place - 1] if 0 < place < len(found) else None


_SEEN_MAX = 255


@dataclass(frozen=True, slots=True)
class BenchVerdict:
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
    """Counter of the records of one load, which may end before the end of its ``Batch``."""

    def __init__(self, batch: Batch) -> None:
        self._n = batch.n
        self._is_open = True
        self._tag = batch.tag_bytes()
        self._filler = batch.filler()
        self._warm_up = batch.warm_up
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
        tag, filler, known_keys, warm_up = self._tag, self._filler, self._keys, self._warm_up
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
            if number >= warm_up:
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
