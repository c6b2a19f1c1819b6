"""Many shards in one RocksDB: one sync for all, and what damage costs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest
from structlog.testing import capture_logs

from delayservice.base.errors import StoreError
from delayservice.engine.cursor import START_KEY
from delayservice.store.base import NO_MARK
from delayservice.store.rocks import prefix_of, read_keys
from delayservice.store.rocksdb import RocksDatabase
from tests.shards import START_MS, check, check_empty, everything, filled, opened, rows_of
from tests.wheels import TOPIC

MANY = 1_000


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
        store = opened(again, partition, 13)
        assert store.next_due_ms(START_KEY) == min(rows_of(partition))[0]
        check(store, partition)
    assert len(again.shards) == MANY
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
    for partition in range(2):
        opened(again, partition, 0)
    again.close()
    third = RocksDatabase(tmp_path)
    assert opened(third, 0).stats().pending == 0
    third.close()
    assert len(list((tmp_path / "quarantine").iterdir())) == 1
