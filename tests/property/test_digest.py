"""Sums that are kept up come to what the definition says, in whatever steps they are kept up."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from delayservice.engine.cursor import NO_GROUP, NO_MARK, Cursor, Frame
from delayservice.replicas.digest import (
    HOUR_MS,
    MINUTE_MS,
    HourSum,
    ShardDigest,
    compared_from_ms,
    frame_hash,
)

RECORDS = 24

keys = st.integers(0, 3 * HOUR_MS)
steps = st.lists(st.integers(1, 5), min_size=1, max_size=RECORDS)


class Log:
    """Records by offset; each may bear one of two ids, and marks the one before of its id."""

    def __init__(self, keys_ms: Sequence[int], ids: Sequence[int]) -> None:
        self.keys_ms = keys_ms
        self.ids = [b"id %d" % number if number else None for number in ids]
        self.mark_of: dict[int, int] = {}
        latest: dict[bytes, int] = {}
        for offset, record_id in enumerate(self.ids):
            if record_id is not None:
                if record_id in latest:
                    self.mark_of[latest[record_id]] = offset
                latest[record_id] = offset

    def frame(self, offset: int) -> Frame:
        mark = self.mark_of.get(offset, NO_MARK)
        return self.keys_ms[offset], offset, mark, b"payload %d" % offset

    def store(self, digest: ShardDigest, start: int, stop: int) -> None:
        run = range(start, min(stop, len(self.ids)))
        named = [(i, self.keys_ms[o], o, NO_GROUP) for o in run if (i := self.ids[o]) is not None]
        marks = [
            (self.ids[victim] or b"", self.keys_ms[victim], victim, mark)
            for victim, mark in sorted(self.mark_of.items(), key=lambda item: item[1])
            if mark in run
        ]
        fresh = [(key_ms, o, NO_MARK, data) for key_ms, o, _, data in map(self.frame, run)]
        digest.store(fresh, named, marks, run.stop)

    def rows(self, h: int, from_ms: int) -> list[HourSum]:
        """By the definition: ``o < H``, no mark below H, due from ``from_ms`` on."""
        sums: dict[int, tuple[int, int]] = {}
        for offset in range(h):
            key_ms, _, mark, payload = self.frame(offset)
            if key_ms < from_ms or 0 <= mark < h:
                continue
            hour_ms = key_ms // HOUR_MS * HOUR_MS
            count, total = sums.get(hour_ms, (0, 0))
            hashed = frame_hash(key_ms, offset, self.ids[offset], payload)
            sums[hour_ms] = (count + 1, (total + hashed) % 2**64)
        return [HourSum(hour_ms, *told) for hour_ms, told in sorted(sums.items())]


def held(digest: ShardDigest, from_ms: int = 0) -> list[HourSum]:
    assert digest.sums is not None
    digest.sums.all_changed()
    return [row for row in digest.sums.take_changed(from_ms) if row.records]


logs = st.builds(
    Log,
    st.lists(keys, min_size=RECORDS, max_size=RECORDS),
    st.lists(st.integers(0, 2), min_size=RECORDS, max_size=RECORDS),
)


@given(logs, steps, steps, keys)
def test_digest_is_as_defined(log: Log, storing: list[int], passing: list[int], k_ms: int) -> None:
    digest = ShardDigest(0)
    h = 0
    for store, move in zip(storing, passing, strict=False):
        log.store(digest, digest.stored, digest.stored + store)
        h = min(h + move, digest.stored)
        digest.follow(Cursor((0, 0), h))
        assert digest.is_exact_at(h)
        assert held(digest) == log.rows(h, digest.from_ms)
    digest.follow(Cursor((k_ms, 0), h))
    assert digest.from_ms > k_ms
    covered_ms = compared_from_ms(k_ms)
    assert digest.from_ms < covered_ms
    assert held(digest, covered_ms) == log.rows(h, covered_ms)
    assert held(digest) == log.rows(h, digest.from_ms)


# How far K moves from one cut to the next, and an owner's K is ahead of the cut's.
moves = st.tuples(st.integers(0, HOUR_MS // 6), st.integers(0, 2 * MINUTE_MS))


@given(logs, steps, st.lists(moves, min_size=RECORDS, max_size=RECORDS))
def test_the_rows_that_changed_are_all_that_has_to_be_published(
    log: Log, storing: list[int], moved: list[tuple[int, int]]
) -> None:
    digest, k_ms, published = ShardDigest(0), 0, dict[int, HourSum]()
    for store, (move_ms, ahead_ms) in zip(storing, moved, strict=False):
        log.store(digest, digest.stored, digest.stored + store)
        k_ms += move_ms
        digest.pass_key((k_ms + ahead_ms, 0))
        digest.follow(Cursor((k_ms, 0), digest.stored))
        from_ms = max(compared_from_ms(k_ms), digest.from_ms)
        assert digest.sums is not None
        for row in digest.sums.take_changed(from_ms):
            published[row.hour_ms] = row
        whole = [row for _, row in sorted(published.items()) if row.records]
        assert whole == log.rows(digest.stored, from_ms)


@given(logs, steps, st.integers(1, 6))
def test_a_digest_read_from_disk_is_the_same(log: Log, storing: list[int], lines: int) -> None:
    # While more is stored, and H moves on, between any two looks at the disk.
    digest = ShardDigest(0)
    order = sorted(range(RECORDS), key=lambda offset: log.frame(offset)[:2])
    digest.begin()
    for at, store in zip(
        range(0, RECORDS + lines, lines), [*storing, *[1] * RECORDS], strict=False
    ):
        log.store(digest, digest.stored, digest.stored + store)
        digest.follow(Cursor((0, 0), digest.stored // 2))
        seen = order[at : at + lines]
        rows = [
            ((key_ms, o, mark if mark < digest.stored else NO_MARK, data), log.ids[o])
            for key_ms, o, mark, data in map(log.frame, seen)
            if o < digest.stored
        ]
        digest.scanned(rows, log.frame(seen[-1])[:2] if seen else (2**60, 0))
    kept = held(digest)
    assert digest.finish() is False
    assert held(digest) == kept == log.rows(digest.counted, digest.from_ms)


def test_an_hour_is_published_again_when_digests_begin_later_in_it() -> None:
    # Also where the copy itself keeps the same: an owner's K was ahead.
    digest = ShardDigest(0)
    digest.store([(minute * MINUTE_MS, minute, NO_MARK, b"") for minute in (3, 9)], [], [], 10)
    digest.follow(Cursor((0, 0), 10))
    assert digest.sums is not None
    assert [row.records for row in digest.sums.take_changed(3 * MINUTE_MS)] == [2]
    assert [row.records for row in digest.sums.take_changed(4 * MINUTE_MS)] == [1]


def test_a_digest_above_its_bound_is_counted_early_and_published_at_h() -> None:
    digest = ShardDigest(0)
    digest.store([(0, o, NO_MARK, b"") for o in range(50_001)], [], [], 50_001)
    assert digest.counted == 50_001
    digest.follow(Cursor((0, 0), 10))
    assert not digest.is_exact_at(10)
    digest.follow(Cursor((0, 0), 50_001))
    assert digest.is_exact_at(50_001)
