from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from delay_devtools.bench.records import HEAD, KEYS, Batch, keys

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
