"""One suite for every store: the promises of ``Store``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TypeAlias
from unittest.mock import patch

import pytest

from delayservice.base.errors import StoreError
from delayservice.contract.codec import encode_payload
from delayservice.contract.entry import OFFSET_MAX
from delayservice.engine.cursor import NO_GROUP, START_KEY, Cursor
from delayservice.store.base import NO_MARK, Frame, Store
from delayservice.store.digesting import DigestingStore
from delayservice.store.folder import VERSION_BYTES, version_text
from delayservice.store.memory import MemoryStore
from delayservice.store.wheel import WheelOptions
from tests.rocks import LoneRocks
from tests.wheels import LoneStore

Maker: TypeAlias = Callable[[], Store]

FAR_MS = 10**15
TINY = WheelOptions(
    slot_ms=1_000, buffer_bytes_max=2_000, near_bytes_max=2_000, sync_bytes=5_000, handles_max=2
)
ODD = replace(TINY, slot_ms=1_500)
WIDE = replace(TINY, slot_ms=3_600_000)
"""All that a test stores is in one giant slot."""


def _makers(path: Path) -> dict[str, Maker]:
    return {
        "memory": MemoryStore,
        "digesting": lambda: DigestingStore(LoneStore(path)),
        "wheel": lambda: LoneStore(path),
        "wheel-tiny": lambda: LoneStore(path, TINY),
        "wheel-odd": lambda: LoneStore(path, ODD),
        "wheel-wide": lambda: LoneStore(path, WIDE),
        "rocksdb": lambda: LoneRocks(path),
    }


WHEELS = ["wheel", "wheel-tiny", "wheel-odd", "wheel-wide"]


@pytest.fixture(params=["memory", *WHEELS, "rocksdb", "digesting"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Maker:
    return _makers(tmp_path / "shard")[request.param]


@pytest.fixture(params=[*WHEELS, "rocksdb"])
def make_durable(request: pytest.FixtureRequest, tmp_path: Path) -> Maker:
    return _makers(tmp_path / "shard")[request.param]


@contextmanager
def opened(make: Maker, stop_offset: int = 0) -> Iterator[Store]:
    """A store that is opened, with this horizon, and closed."""
    store = make()
    assert store.open() == stop_offset
    yield store
    store.close()


@pytest.fixture
def store(make: Maker) -> Iterator[Store]:
    with opened(make) as store:
        yield store


def frame(key_ms: int, offset: int, mark: int = NO_MARK) -> Frame:
    return (key_ms, offset, mark, b"payload %d" % offset)


def frames(count: int, start_ms: int = 1_000_000, spread_ms: int = 5_000) -> list[Frame]:
    return [frame(start_ms + offset * 7919 % spread_ms, offset) for offset in range(count)]


def read_all(store: Store, limit: int = 7) -> list[Frame]:
    found: list[Frame] = []
    while part := store.read_due(found[-1][:2] if found else (0, -1), FAR_MS, limit):
        assert len(part) <= limit
        found += part
    return found


def test_a_new_store_is_empty(store: Store) -> None:
    assert store.read_due(START_KEY, FAR_MS, 10) == []
    assert store.next_due_ms((0, -1)) is None
    assert store.latest_unmarked(b"id", OFFSET_MAX) is None
    assert store.marked_from(0) == []
    assert store.stats().pending == 0
    assert store.label == b""


def test_reading_starts_after_the_key_and_ends_with_the_bound(store: Store) -> None:
    store.append([frame(1000, 1), frame(1000, 2), frame(1999, 3), frame(2000, 4)], [], [], 5)
    assert [f[1] for f in store.read_due((1000, 1), 2000, 10)] == [2, 3, 4]
    assert [f[1] for f in store.read_due((1000, 1), 1999, 10)] == [2, 3]
    assert [f[1] for f in store.read_due((999, OFFSET_MAX), 1000, 10)] == [1, 2]
    assert store.read_due((2000, 4), FAR_MS, 10) == []
    assert store.read_due((0, 0), 999, 10) == []


def test_old_far_and_extreme_keys_are_kept(store: Store) -> None:
    given = [frame(ms, i) for i, ms in enumerate([0, 1, 999, 1000, 4 * 10**12, 300 * 10**12])]
    store.append(given, [], [], len(given))
    assert read_all(store) == given
    store.sync()
    assert read_all(store) == given


def test_payloads_come_back_byte_for_byte(store: Store) -> None:
    payloads = [b"", b"\x00" * 10, bytes(range(256)), b"x" * 3_000_000, b"\xff"]
    given = [(5_000, i, NO_MARK, payload) for i, payload in enumerate(payloads)]
    store.append(given, [], [], len(given))
    store.sync()
    assert store.read_due((0, 0), FAR_MS, 10) == given


def test_the_next_due_time_is_exact_once_its_second_was_read(store: Store) -> None:
    store.append([frame(5_100, 1), frame(5_900, 2)], [], [], 3)
    assert store.read_due((0, 0), 5_050, 10) == []
    assert store.next_due_ms((0, 0)) == 5_100
    assert store.next_due_ms((5_100, 1)) == 5_900


def test_a_frame_may_be_marked_from_birth(store: Store) -> None:
    store.append([frame(5_000, 7, 3), frame(5_001, 8)], [], [], 9)
    assert read_all(store) == [frame(5_000, 7, 3), frame(5_001, 8)]


def test_a_copy_that_was_marked_before_it_came_leaves_its_id_as_it_is(store: Store) -> None:
    # Rule 13: a user record of its id lies between its base and itself.
    store.append([frame(5_000, 1)], [(b"id", 5_000, 1, NO_GROUP)], [], 2)
    store.append([frame(6_000, 4)], [(b"id", 6_000, 4, NO_GROUP)], [(b"id", 6_000, 4, 1)], 5)
    assert store.latest_unmarked(b"id", 5) == (5_000, 1)
    assert store.marked_from(0) == [(1, (6_000, 4))]


def test_a_copy_takes_the_place_of_its_original_without_a_mark(store: Store) -> None:
    store.append([frame(5_000, 1)], [(b"id", 5_000, 1, NO_GROUP)], [], 2)
    store.append([frame(6_000, 4)], [(b"id", 6_000, 4, NO_GROUP)], [], 5)
    store.prune(Cursor((5_500, 0), 2))
    assert store.latest_unmarked(b"id", 5) == (6_000, 4)


def test_marks_that_h_has_passed_are_dropped_although_k_stands_still(store: Store) -> None:
    given = [frame(5_000 + i, i) for i in range(5)]
    store.append(given, [(b"x", f[0], f[1], NO_GROUP) for f in given], [], 5)
    store.append([], [], [(b"x", 5_000 + i, i, 10 + i) for i in range(5)], 15)
    for _ in range(3):  # a store may keep marks until they are durable
        store.sync()
        store.prune(Cursor(START_KEY, 12))
    assert store.marked_from(0) == [(12 + i, (5_002 + i, 2 + i)) for i in range(3)]


def test_marks_of_a_copy_that_lags_behind_h_are_dropped_too(store: Store) -> None:
    # They come after the checkpoint that has passed them.
    store.append(
        [frame(5_000, 1), frame(6_000, 2)],
        [(b"a", 5_000, 1, NO_GROUP), (b"b", 6_000, 2, NO_GROUP)],
        [],
        3,
    )
    store.prune(Cursor(START_KEY, 1_000))
    store.append([], [], [(b"a", 5_000, 1, 7)], 8)
    for _ in range(3):
        store.sync()
        store.prune(Cursor(START_KEY, 1_000))
    assert store.marked_from(0) == []
    assert store.latest_unmarked(b"a", 8) is None


def test_a_copy_behind_h_drops_records_that_k_has_passed(store: Store) -> None:
    given = [frame(5_000, offset) for offset in range(5)]
    store.append(given[:1], [], [], 1)
    k = (5_000, 2)
    store.prune(Cursor(k, 5))
    store.append(given[1:], [], [], 5)
    store.prune(Cursor(k, 5))
    assert store.read_due(k, FAR_MS, 10) == given[3:]


def test_a_slot_goes_only_when_its_exclusive_end_is_reached(store: Store) -> None:
    given = [frame(5_000, 1), frame(5_999, 2), frame(6_000, 3)]
    store.append(given, [], [], 4)
    store.sync()
    store.prune(Cursor((5_999, 1), 4))
    assert store.read_due((5_999, 1), FAR_MS, 10) == given[1:]
    store.prune(Cursor((6_000, 0), 4))
    assert store.read_due((6_000, 0), FAR_MS, 10) == given[2:]


def test_a_pruned_store_is_empty_and_takes_more(store: Store) -> None:
    store.append(frames(100), [(b"a", 1_000_000, 0, NO_GROUP)], [], 100)
    store.sync()
    store.prune(Cursor((9_000_000, 0), 100))
    assert store.stats().pending == 0
    assert store.next_due_ms((9_000_000, 0)) is None
    store.append([frame(9_000_500, 100)], [(b"a", 9_000_500, 100, NO_GROUP)], [], 101)
    assert store.read_due((9_000_000, 0), FAR_MS, 10) == [frame(9_000_500, 100)]
    assert store.latest_unmarked(b"a", 101) == (9_000_500, 100)


def test_scan_disturbs_no_reading(store: Store) -> None:
    given = sorted(frames(300))
    store.append(given, [], [], 300)
    first = store.read_due((0, 0), FAR_MS, 10)
    scanned = store.scanner().frames((0, 0), FAR_MS)
    assert next(scanned) == given[0]
    assert store.read_due(first[-1][:2], FAR_MS, 10) == given[10:20]
    assert list(scanned) == given[1:]


def test_a_scanner_follows_what_is_appended_pruned_and_reset(store: Store) -> None:
    scanner = store.scanner()
    given = sorted(frames(300))
    for start in (0, 150):
        some = [f for f in given if start <= f[1] < start + 150]
        store.append(some, [], [], start + 150)
        assert list(scanner.frames((0, 0), FAR_MS)) == [f for f in given if f[1] < start + 150]
    store.prune(Cursor(given[200][:2], 300))
    assert list(scanner.frames(given[200][:2], FAR_MS)) == given[201:]
    store.sync()
    store.reset()
    assert list(scanner.frames((0, 0), FAR_MS)) == []
    again = [(*f[:3], b"again") for f in given]
    store.append([f for f in again if f[1] < 150], [], [], 150)
    assert next(scanner.frames((0, 0), FAR_MS)) == next(f for f in again if f[1] < 150)
    store.append([f for f in again if f[1] >= 150], [], [], 300)
    store.sync()  # the rest goes to the disk while the scanner has rows of this slot in memory
    assert list(scanner.frames((0, 0), FAR_MS)) == again


def test_rebuild_replaces_a_range_and_nothing_else(store: Store) -> None:
    given = frames(300)
    store.append(given, [], [], 300)
    store.sync()
    inside = [f for f in given if 1_001_000 <= f[0] < 1_003_000]
    store.rebuild(1_001_000, 1_003_000, inside[: len(inside) // 2])
    lost = set(inside[len(inside) // 2 :])
    assert read_all(store) == sorted(f for f in given if f not in lost)
    assert store.stats().pending == len(given) - len(lost)
    store.rebuild(1_001_000, 1_003_000, given)
    assert read_all(store) == sorted(given)
    assert store.stats().pending == len(given)


def test_missing_records_are_added_to_an_empty_range(store: Store) -> None:
    store.append(frames(10), [], [], 10)
    found = (50_000_001, 3, -1, b"was missing")
    store.rebuild(50_000_000, 50_060_000, [found])
    assert read_all(store) == [*sorted(frames(10)), found]


def test_a_scan_in_small_steps_misses_nothing_that_comes_meanwhile(make: Maker) -> None:
    # The digest of a scan equals the digest of the stored records, through flushes and moves.
    rng = Random(7)
    payload = encode_payload(("orders", -1, None, b"value", [], 0, None))
    with patch("delayservice.store.digesting.SCAN_ROWS", 40):
        store = DigestingStore(make())
        store.open()
        offset = 1_000
        first = [10**6 + rng.randrange(7_200_000) for _ in range(offset)]
        store.append([(key, n, NO_MARK, payload) for n, key in enumerate(first)], [], [], offset)
        for _ in range(3):
            store.prune(Cursor((1, 0), 0))
            store.begin_scan()
            ended = False
            while not ended:
                keys = [10**6 + rng.randrange(7_200_000) for _ in range(30)]
                rows = [(key, offset + n, NO_MARK, payload) for n, key in enumerate(keys)]
                offset += len(rows)
                store.append(rows if offset < 3_000 else [], [], [], offset)
                store.digest.follow(Cursor((1, 0), offset - rng.randrange(60)))
                if rng.random() < 0.2:
                    store.sync()
                if rng.random() < 0.3:
                    store.read_due((1, 0), 10**6 + rng.randrange(3_600_000), 5)
                ended = store.scan_on()
            assert store.digest.finish() is False
        sums = store.digest.sums
        assert sums is not None
        assert sums.totals()[1] > 1_000
        store.close()


def test_stats_count(store: Store) -> None:
    store.append(frames(100, start_ms=7_000), [], [], 100)
    stats = store.stats()
    assert stats.pending == 100
    assert stats.bytes > 0
    assert stats.durable_offset == 0 or stats.durable_offset == store.sync()
    assert store.sync() == 100
    assert store.stats().durable_offset == 100


def test_a_store_of_an_older_format_starts_over(make_durable: Maker, tmp_path: Path) -> None:
    # An older format has no label, which names the contracts of its records.
    with opened(make_durable) as store:
        store.append(frames(10), [(b"a", 1_000_000, 0, NO_GROUP)], [], 10)
    version = tmp_path / "shard" / "VERSION"
    kind, number = version.read_text().split()[:2]
    version.write_bytes(version_text(kind, int(number) - 1))
    with opened(make_durable) as store:
        assert store.label == b""
        assert read_all(store) == []
        assert version.read_bytes() == version_text(kind, int(number))
        store.append(frames(10), [], [], 10)
    assert not (tmp_path / "shard" / "quarantine").exists()
    with opened(make_durable, 10):
        pass


def test_two_owners_of_one_folder_are_refused(make_durable: Maker) -> None:
    with opened(make_durable), pytest.raises(StoreError, match="in use by process"):
        make_durable().open()
    with opened(make_durable):
        pass


def test_a_newer_format_is_refused_and_left_alone(make_durable: Maker, tmp_path: Path) -> None:
    with opened(make_durable) as store:
        store.append(frames(10), [], [], 10)
    version = tmp_path / "shard" / "VERSION"
    text = version.read_text()
    kind = text.split()[0]
    version.write_bytes(version_text(kind, 2))
    with pytest.raises(StoreError, match=r"format 2, newer than 1.*run the newer service"):
        make_durable().open()
    assert version.read_bytes() == version_text(kind, 2)
    version.write_bytes(version_text("other", 1))
    with pytest.raises(StoreError, match="other"):
        make_durable().open()
    version.write_text(text)
    with opened(make_durable, 10):
        pass


@pytest.mark.parametrize("change", [1, 0x40])
def test_a_damaged_version_starts_over(make_durable: Maker, tmp_path: Path, change: int) -> None:
    # Each byte of it: no such folder is another backend's, or a newer service's.
    version = tmp_path / "shard" / "VERSION"
    for position in range(VERSION_BYTES):
        with opened(make_durable) as store:
            store.append(frames(10), [], [], 10)
        data = bytearray(version.read_bytes())
        data[position] ^= change
        version.write_bytes(data)
        with opened(make_durable):
            pass


def test_a_store_without_its_version_starts_over(make_durable: Maker, tmp_path: Path) -> None:
    with opened(make_durable) as store:
        store.append(frames(10), [], [], 10)
    (tmp_path / "shard" / "VERSION").unlink()
    with opened(make_durable) as store:
        assert read_all(store) == []


def test_the_folder_is_for_its_owner_only(make_durable: Maker, tmp_path: Path) -> None:
    with opened(make_durable) as store:
        store.append(frames(10), [], [], 10)
    assert (tmp_path / "shard").stat().st_mode & 0o077 == 0


def test_marks_are_listed_from_an_offset_on(store: Store) -> None:
    given = [frame(5_000 + i, i) for i in range(5)]
    marks = [(b"x", 5_000 + i, i, 10 + i) for i in (3, 1, 2)]
    store.append(given, [(b"x", f[0], f[1], NO_GROUP) for f in given], marks, 20)
    assert store.marked_from(12) == [(12, (5_002, 2)), (13, (5_003, 3))]
    assert store.marked_from(0)[0] == (11, (5_001, 1))
    assert store.marked_from(14) == []
