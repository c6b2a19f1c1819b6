"""Many shards in one RocksDB: one sync for all, and each goes and comes without the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest
from structlog.testing import capture_logs

from delayservice.base.errors import StoreError
from delayservice.engine.cursor import START_KEY, Cursor
from delayservice.store.base import NO_MARK, Frame
from delayservice.store.rocks import RocksOptions, prefix_of, read_keys
from delayservice.store.rocks_database import RocksDatabase
from delayservice.store.rocksdb import RocksStore
from delayservice.store.shards import kept_shards
from tests.wheels import TOPIC

FAR_MS = 10**15
START_MS = 1_800_000_000_000
MANY = 1_000
END = b"\xff" * 8


def rows_of(partition: int, count: int = 12) -> list[Frame]:
    rng = Random(partition)
    keys = [START_MS + rng.randrange(60_000) for _ in range(count)]
    return [(key, n, NO_MARK, b"%d of %d" % (n, partition)) for n, key in enumerate(keys)]


def opened(rocks: RocksDatabase, partition: int, stop_offset: int = 0) -> RocksStore:
    store = RocksStore(rocks, TOPIC, partition)
    assert store.open() == stop_offset
    return store


def filled(rocks: RocksDatabase, partitions: int) -> list[RocksStore]:
    """Shards with records, an id and a mark each."""
    stores = [opened(rocks, partition) for partition in range(partitions)]
    for partition, store in enumerate(stores):
        rows = rows_of(partition)
        named = [(b"id", *rows[0][:2]), (b"other", *rows[1][:2])]
        store.set_label(b"label %d" % partition)
        store.append(rows, named, [(b"other", *rows[1][:2], 12)], 13)
    return stores


def everything(store: RocksStore) -> list[Frame]:
    found: list[Frame] = []
    while part := store.read_due(found[-1][:2] if found else START_KEY, FAR_MS, 5):
        found += part
    return found


def expected(partition: int) -> list[Frame]:
    rows = rows_of(partition)
    rows[1] = (*rows[1][:2], 12, rows[1][3])
    return sorted(rows)


def check(store: RocksStore, partition: int) -> None:
    """That a shard holds what it was filled with, and nothing of another."""
    rows = rows_of(partition)
    assert everything(store) == expected(partition)
    assert store.label == b"label %d" % partition
    assert store.latest_unmarked(b"id", 13) == rows[0][:2]
    assert store.latest_unmarked(b"other", 13) is None
    assert store.marked_from(0) == [(12, rows[1][:2])]
    assert store.next_due_ms(START_KEY) == expected(partition)[0][0]
    assert store.stats().pending == 12


@pytest.fixture
def rocks(tmp_path: Path) -> Iterator[RocksDatabase]:
    database = RocksDatabase(tmp_path)
    yield database
    database.abandon()


def test_a_thousand_shards_are_one_database_with_one_sync(
    rocks: RocksDatabase, tmp_path: Path
) -> None:
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
        check(opened(again, partition, 13), partition)
    assert len(again.places) == MANY
    again.close()


def test_a_shard_that_leaves_takes_its_rows_and_space_and_no_others(
    rocks: RocksDatabase, tmp_path: Path
) -> None:
    stores = filled(rocks, 3)
    payload = Random(1).randbytes(1_000)
    big = [(START_MS + n, 100 + n, NO_MARK, payload[: n % 9] + payload) for n in range(5_000)]
    stores[1].append(big, [], [], 10_000)
    rocks.database.flush()
    before = sum(path.stat().st_size for path in tmp_path.rglob("*.sst"))
    stores[1].close()
    rocks.remove((TOPIC, 1))
    for partition in (0, 2):
        check(stores[partition], partition)
    assert read_keys(rocks.database, prefix_of(2), prefix_of(3), 1) == []
    rocks.close()  # waits for the compaction
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.sst")) < before // 2
    again = RocksDatabase(tmp_path)
    assert again.places == []  # not open
    check(opened(again, 2, 13), 2)
    assert again.places == [(TOPIC, 0), (TOPIC, 2)]
    comes_back = opened(again, 1)
    assert everything(comes_back) == []
    assert comes_back.label == b""
    assert comes_back.stats().pending == 0
    again.close()


def test_a_removal_survives_a_crash(rocks: RocksDatabase, tmp_path: Path) -> None:
    stores = filled(rocks, 2)
    stores[1].sync()
    stores[1].close()
    rocks.remove((TOPIC, 1))
    rocks.abandon()
    again = RocksDatabase(tmp_path)
    check(opened(again, 0, 13), 0)
    assert everything(opened(again, 1)) == []
    again.close()


def test_a_shard_that_is_open_is_not_removed_and_not_opened_twice(rocks: RocksDatabase) -> None:
    (store,) = filled(rocks, 1)
    rocks.remove((TOPIC, 0))
    check(store, 0)
    with pytest.raises(StoreError, match="in use by this process already"):
        RocksStore(rocks, TOPIC, 0).open()


def test_a_shard_that_starts_over_leaves_the_others(rocks: RocksDatabase, tmp_path: Path) -> None:
    stores = filled(rocks, 3)
    stores[1].reset()
    assert everything(stores[1]) == []
    assert (stores[1].label, stores[1].marked_from(0)) == (b"", [])
    stores[1].append([(START_MS, 0, NO_MARK, b"anew")], [], [], 1)
    rocks.abandon()
    again = RocksDatabase(tmp_path)
    for partition in (0, 2):
        check(opened(again, partition, 13), partition)
    assert everything(opened(again, 1, 1)) == [(START_MS, 0, NO_MARK, b"anew")]
    again.close()


def test_a_prune_of_one_shard_leaves_the_others(rocks: RocksDatabase) -> None:
    stores = filled(rocks, 2)
    stores[0].prune(Cursor((START_MS + 3_600_000, 0), 13))
    assert everything(stores[0]) == []
    assert stores[0].stats().pending == 0
    check(stores[1], 1)


def test_a_shard_that_no_lane_opens_for_long_is_removed(tmp_path: Path) -> None:
    first = RocksDatabase(tmp_path)
    filled(first, 2)
    first.close()
    now_s = 10_000.0
    with patch("delayservice.store.rocks_database.time.monotonic", lambda: now_s):
        rocks = RocksDatabase(tmp_path, RocksOptions(unused_s=100))
        kept = opened(rocks, 0, 13)
        now_s += 99
        kept.sync()
        assert len(rocks.places) == 2
        now_s += 2
        with capture_logs() as logged:
            kept.sync()
        assert [line["event"] for line in logged] == ["unused_shard_removed"]
    assert rocks.places == [(TOPIC, 0)]
    check(kept, 0)
    kept.close()
    assert kept_shards(tmp_path) == [(str(tmp_path), TOPIC, 0)]


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
    assert len(list((tmp_path / "quarantine").iterdir())) == 1


def test_damage_that_one_shard_meets_condemns_the_database_once(tmp_path: Path) -> None:
    """The process ends, and its next life rebuilds all shards."""
    rocks = RocksDatabase(tmp_path)
    stores = filled(rocks, 2)
    with pytest.raises(StoreError, match="put aside and rebuilt"), rocks.guard("read"):
        raise OSError("block checksum mismatch")
    del stores
    rocks.abandon()
    again = RocksDatabase(tmp_path)
    assert [RocksStore(again, TOPIC, partition).open() for partition in range(2)] == [0, 0]
    again.close()
    third = RocksDatabase(tmp_path)
    assert opened(third, 0).stats().pending == 0
    third.close()
    assert len(list((tmp_path / "quarantine").iterdir())) == 1
