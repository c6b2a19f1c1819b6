"""What the RocksDB store costs: tombstones and memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from delayservice.contract.entry import OFFSET_MAX
from delayservice.engine.cursor import Cursor
from delayservice.store import rocksdb
from delayservice.store.base import NO_MARK, Frame
from delayservice.store.rocks import RocksOptions, read_keys
from tests.integration.bench import await_true
from tests.rocks import LoneRocks

FAR_MS = 10**15


def frames(count: int, step_ms: int) -> list[Frame]:
    return [(1_000_000 + o * step_ms, o, NO_MARK, b"payload") for o in range(count)]


@pytest.fixture
def in_lumps(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is passed is deleted by ranges, as in a shard with many records a second."""
    monkeypatch.setattr(rocksdb, "_SINGLES_MAX", 0)


def test_few_records_are_deleted_when_they_are_passed_without_a_range(tmp_path: Path) -> None:
    """A thousand slow shards leave no range tombstones in the database that they share."""
    store = LoneRocks(tmp_path)
    store.open()
    given = frames(2_000, 1_000)
    store.append(given, [], [(b"id", *given[3][:2], 2_000)], 2_001)
    for position, frame in enumerate(given):
        store.prune(Cursor(frame[:2], 2_001))
        assert store.stats().pending == len(given) - position - 1
        assert store._passed == 0  # nothing waits for a range
    start, stop = store._pack_key(0, 0), store._pack_key(given[-1][0], 0)
    assert read_keys(store._db, start, stop, 1) == []
    store.close()


@pytest.mark.usefixtures("in_lumps")
def test_pruning_by_ranges_leaves_few_tombstones(tmp_path: Path) -> None:
    store = LoneRocks(tmp_path)
    store.open()
    given = frames(2_000, 1_000)
    store.append(given, [], [], len(given))
    deleted = set()
    for position, frame in enumerate(given):
        store.prune(Cursor(frame[:2], len(given)))
        assert store.stats().pending == len(given) - position - 1
        deleted.add(store._deleted_ms)
    assert deleted == {1_000_000, 1_600_000, 2_200_000, 2_800_000}
    assert store._db.get(store._pack_key(*given[1_799][:2])) is None
    store.close()


def test_a_dense_second_is_deleted_before_ten_minutes_are_over(tmp_path: Path) -> None:
    store = LoneRocks(tmp_path)
    store.open()
    store.prune(Cursor((1_000_000, 0), 0))
    given = [(1_000_000, o, NO_MARK, b"") for o in range(50_000)]
    store.append(given, [], [], len(given))
    store.prune(Cursor((1_001_000, 0), len(given)))
    assert store._db.get(store._pack_key(*given[0][:2])) is None
    assert store.stats().pending == 0
    store.close()


@pytest.mark.usefixtures("in_lumps")
def test_pruned_rows_are_neither_read_nor_counted(tmp_path: Path) -> None:
    store = LoneRocks(tmp_path)
    store.open()
    given = frames(100, 100)
    store.append(given, [], [], len(given))
    store.prune(Cursor((999_999, OFFSET_MAX), 100))
    store.prune(Cursor((1_004_900, 49), 100))
    assert store._db.get(store._pack_key(*given[0][:2])) == b"payload"
    assert store.stats().pending == 50
    assert store.read_due((0, -1), FAR_MS, 100) == given[50:]
    store.close()
    store = LoneRocks(tmp_path)
    assert store.open() == 100
    store.prune(Cursor((1_004_900, 49), 100))
    assert store.stats().pending == 50
    assert store.read_due((1_005_000, 50), FAR_MS, 100) == given[51:]
    store.close()


def is_flushing(store: LoneRocks) -> bool:
    """Whether a memory table waits for its way to the disk: it counts in the shared bound."""
    names = ("rocksdb.mem-table-flush-pending", "rocksdb.num-running-flushes")
    return any(store._db.property_int_value(name) for name in names)


def test_memory_tables_of_all_stores_share_one_bound(tmp_path: Path) -> None:
    options = RocksOptions(write_buffer_bytes=16 << 20, write_buffers_bytes=(8 << 20) + 1)
    stores = [LoneRocks(tmp_path / str(number), options) for number in range(4)]
    for store in stores:
        store.open()
    for start in range(0, 6_000, 1_000):
        for store in stores:
            part = [(o, o, NO_MARK, b"x" * 1_000) for o in range(start, start + 1_000)]
            store.append(part, [], [], start + 1_000)
            await_true(lambda: not any(map(is_flushing, stores)), "the flushes are done")
    # The active ones: those that are being flushed go when the disk lets them.
    tables = [store._db.property_int_value("rocksdb.cur-size-active-mem-table") for store in stores]
    assert sum(size or 0 for size in tables) < 16 << 20
    for store in stores:
        store.close()
