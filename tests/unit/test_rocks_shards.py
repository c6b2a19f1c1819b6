"""RocksDB: many shards in one database, how rows are deleted, and the index of ids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest
from structlog.testing import capture_logs

from delayservice.base.errors import StoreError
from delayservice.contract.entry import OFFSET_MAX
from delayservice.engine.cursor import START_KEY, Cursor
from delayservice.store import rocksdb
from delayservice.store.base import NO_MARK, Frame
from delayservice.store.rocks import RocksOptions, condemn, prefix_of, read_keys
from delayservice.store.rocksdb import DATABASE, RocksDatabase
from delayservice.store.wheel import Wheel
from tests.integration.bench import await_true
from tests.rocks import LoneRocks
from tests.shards import START_MS, check, check_empty, everything, filled, opened, rows_of
from tests.wheels import TOPIC

MANY = 1_000


@pytest.fixture
def rocks(tmp_path: Path) -> Iterator[RocksDatabase]:
    database = RocksDatabase(tmp_path)
    yield database
    database.abandon()


def test_many_shards_are_one_database_with_one_sync(rocks: RocksDatabase, tmp_path: Path) -> None:
    stores = filled(rocks, MANY)
    with patch.object(rocks, "guard", wraps=rocks.guard) as guard:
        assert stores[0].sync() == 13
        assert all(store.stats().durable_offset == 13 for store in stores)
        assert stores[7].sync() == 13
        deeds = [call.args[0] for call in guard.call_args_list]
    assert deeds.count("fsync") == 1  # then nothing has changed
    assert len(list(tmp_path.rglob("*.log"))) == 1
    rocks.close()
    again = RocksDatabase(tmp_path)
    for partition in (0, 1, 500, MANY - 1):
        store = opened(again, partition, 13)
        assert store.next_due_ms(START_KEY) == min(rows_of(partition))[0]
        check(store, partition)
    assert len(again.shards) == MANY
    again.close()


def test_a_shard_that_leaves_takes_only_its_rows(rocks: RocksDatabase, tmp_path: Path) -> None:
    stores = filled(rocks, 3)
    payload = Random(1).randbytes(1_000)
    big = [(START_MS + n, 100 + n, NO_MARK, payload[: n % 9] + payload) for n in range(5_000)]
    stores[1].append(big, [], [], 10_000)
    rocks.database.flush()
    before = sum(path.stat().st_size for path in tmp_path.rglob("*.sst"))
    stores[1].close()
    rocks.remove(TOPIC, 1)
    for partition in (0, 2):
        check(stores[partition], partition)
    assert read_keys(rocks.database, prefix_of(2), prefix_of(3), 1) == []
    rocks.close()  # waits for the compaction
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.sst")) < before // 2
    again = RocksDatabase(tmp_path)
    assert again.shards == {}  # not open
    check(opened(again, 2, 13), 2)
    assert sorted(again.shards) == [(TOPIC, 0), (TOPIC, 2)]
    check_empty(opened(again, 1))
    again.close()


def test_a_removal_survives_a_crash(rocks: RocksDatabase, tmp_path: Path) -> None:
    stores = filled(rocks, 2)
    stores[1].sync()
    stores[1].close()
    rocks.remove(TOPIC, 1)
    rocks.abandon()
    again = RocksDatabase(tmp_path)
    check(opened(again, 0, 13), 0)
    check_empty(opened(again, 1))
    again.close()


def aside(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "quarantine").iterdir())


def test_a_damaged_database_is_put_aside_for_all_its_shards(tmp_path: Path) -> None:
    first = RocksDatabase(tmp_path)
    filled(first, 3)
    first.database.flush()
    first.close()
    for table in tmp_path.rglob("*.sst"):
        table.write_bytes(bytes(b ^ 0x55 for b in table.read_bytes()))
    rocks = RocksDatabase(tmp_path)
    with capture_logs() as logged:
        stores = [opened(rocks, partition) for partition in range(3)]
    assert [line["event"] for line in logged] == ["store_damaged"]
    assert [everything(store) for store in stores] == [[], [], []]
    rocks.close()
    assert aside(tmp_path) == ["00000001-db"]
    for _ in range(3):  # a failing disk is not filled with databases
        condemn(tmp_path / DATABASE)
        rocks = RocksDatabase(tmp_path)
        rocks.open()
        rocks.close()
    assert aside(tmp_path) == ["00000003-db", "00000004-db"]


def test_damage_that_one_shard_meets_condemns_the_database_once(tmp_path: Path) -> None:
    # The process ends, and its next life rebuilds all shards.
    rocks = RocksDatabase(tmp_path)
    stores = filled(rocks, 2)
    with pytest.raises(StoreError, match="put aside and rebuilt"), rocks.guard("read"):
        raise OSError("block checksum mismatch")
    del stores
    rocks.abandon()
    again = RocksDatabase(tmp_path)
    for partition in range(2):
        opened(again, partition, 0)
    again.close()
    third = RocksDatabase(tmp_path)
    assert opened(third, 0).stats().pending == 0
    third.close()
    assert aside(tmp_path) == ["00000001-db"]


# --- what the RocksDB store costs: tombstones and memory ------------------------------------------


FAR_MS = 10**15


def frames(count: int, step_ms: int) -> list[Frame]:
    return [(1_000_000 + o * step_ms, o, NO_MARK, b"payload") for o in range(count)]


@pytest.fixture
def in_lumps(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is passed is deleted by ranges, as in a shard with many records a second."""
    monkeypatch.setattr(rocksdb, "_SINGLES_MAX", 0)


def test_few_records_are_deleted_when_they_are_passed_without_a_range(tmp_path: Path) -> None:
    # A thousand slow shards leave no range tombstones in the database that they share.
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


# --- ids of many shards of a wheel: one database, and what damage costs ---------------------------


SHARDS = 300


def test_many_shards_have_one_database_of_ids(tmp_path: Path) -> None:
    wheel = Wheel(tmp_path)
    for partition, store in enumerate(filled(wheel, SHARDS)):
        check(store, partition)
    assert len(list((tmp_path / "ids").glob("*.log"))) == 1
    assert not [path for path in (tmp_path / "ids").iterdir() if path.is_dir()]
    wheel.close()
    again = Wheel(tmp_path)
    for partition in range(SHARDS):
        check(opened(again, partition, 13), partition)
    again.close()


def test_ids_of_a_removed_shard_that_a_crash_brings_back_are_removed_again(tmp_path: Path) -> None:
    wheel = Wheel(tmp_path)
    stores = filled(wheel, 2)
    stores[0].sync()
    generation = wheel.shards[TOPIC, 1].generation
    stores[1].close()
    with patch.object(wheel._ids, "remove"):
        wheel.remove(TOPIC, 1)
        wheel.sync()
    wheel.abandon()
    again = Wheel(tmp_path)
    check(opened(again, 0), 0)
    start, stop = prefix_of(generation), prefix_of(generation + 1)
    assert read_keys(again._ids.open(), start, stop, 1) == []
    again.close()


def test_a_damaged_database_of_ids_costs_the_shards_with_ids_and_no_others(tmp_path: Path) -> None:
    wheel = Wheel(tmp_path)
    filled(wheel, 3, with_ids=2)
    wheel.close()
    for path in (tmp_path / "ids").glob("MANIFEST-*"):
        path.write_bytes(b"rubbish")
    again = Wheel(tmp_path)
    with capture_logs() as logged:
        stores = [opened(again, partition, stop) for partition, stop in enumerate((0, 0, 13))]
    told = [line["event"] for line in logged]
    assert told == ["id_index_damaged", "ids_damaged", "ids_damaged"]
    check_empty(stores[0])
    assert stores[2].stats().pending == 12
    again.close()
    third = Wheel(tmp_path)
    for partition, stop in enumerate((0, 0, 13)):
        opened(third, partition, stop)
    third.close()
