"""Ids of many shards of a wheel: one database, and each shard goes and comes without the others."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

from structlog.testing import capture_logs

from delayservice.engine.cursor import Key
from delayservice.store.base import NO_MARK
from delayservice.store.rocks import prefix_of, read_keys
from delayservice.store.wheel import Wheel, WheelStore
from tests.wheels import TOPIC

START_MS = 1_800_000_000_000
MANY = 300


def opened(wheel: Wheel, partition: int) -> WheelStore:
    store = WheelStore(wheel, TOPIC, partition)
    store.open()
    return store


def key_of(partition: int) -> Key:
    return START_MS + partition, 0


def filled(wheel: Wheel, partitions: int, without_ids: int = 0) -> list[WheelStore]:
    """Shards with the same two ids, of which the second is cancelled; the last bear none."""
    stores = [opened(wheel, partition) for partition in range(partitions)]
    for partition, store in enumerate(stores):
        key, other = key_of(partition), (START_MS, 1)
        rows = [(*key, NO_MARK, b"one"), (*other, NO_MARK, b"two")]
        has_ids = partition < partitions - without_ids
        named = [(b"id", *key), (b"other", *other)] if has_ids else []
        store.append(rows, named, [(b"other", *other, 2)] if has_ids else [], 3)
    return stores


def check(store: WheelStore, partition: int) -> None:
    assert store.latest_unmarked(b"id", 3) == key_of(partition)
    assert store.latest_unmarked(b"other", 3) is None
    assert store.marked_from(0) == [(2, (START_MS, 1))]


def test_many_shards_have_one_database_of_ids(tmp_path: Path) -> None:
    wheel = Wheel(tmp_path)
    for partition, store in enumerate(filled(wheel, MANY)):
        check(store, partition)
    assert len(list((tmp_path / "ids").glob("*.log"))) == 1
    assert not [path for path in (tmp_path / "ids").iterdir() if path.is_dir()]
    wheel.close()
    again = Wheel(tmp_path)
    for partition in range(MANY):
        store = opened(again, partition)
        assert store.stats().durable_offset == 3
        check(store, partition)
    again.close()


def test_the_ids_of_a_shard_that_leaves_or_starts_over_go_and_no_others(tmp_path: Path) -> None:
    wheel = Wheel(tmp_path)
    stores = filled(wheel, 4)
    stores[1].close()
    wheel.remove(TOPIC, 1)
    stores[2].reset()
    for partition in (0, 3):
        check(stores[partition], partition)
    assert stores[2].latest_unmarked(b"id", 3) is None
    wheel.close()
    again = Wheel(tmp_path)
    for partition in (0, 3):
        check(opened(again, partition), partition)
    for partition in (1, 2):
        store = opened(again, partition)
        assert store.latest_unmarked(b"id", 3) is None
        assert store.marked_from(0) == []
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
    filled(wheel, 3, without_ids=1)
    wheel.close()
    for path in (tmp_path / "ids").glob("MANIFEST-*"):
        path.write_bytes(b"rubbish")
    again = Wheel(tmp_path)
    with capture_logs() as logged:
        stores = [WheelStore(again, TOPIC, partition) for partition in range(3)]
        assert [store.open() for store in stores] == [0, 0, 3]
    told = [line["event"] for line in logged]
    assert told == ["id_index_damaged", "ids_damaged", "ids_damaged"]
    assert stores[0].latest_unmarked(b"id", 3) is None
    assert stores[2].stats().pending == 2
    again.close()
    third = Wheel(tmp_path)
    assert [WheelStore(third, TOPIC, partition).open() for partition in range(3)] == [0, 0, 3]
    third.close()
