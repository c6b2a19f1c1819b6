"""Ids of many shards of a wheel: one database, and what damage costs."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

from structlog.testing import capture_logs

from delayservice.store.rocks import prefix_of, read_keys
from delayservice.store.wheel import Wheel
from tests.shards import check, check_empty, filled, opened
from tests.wheels import TOPIC

MANY = 300


def test_many_shards_have_one_database_of_ids(tmp_path: Path) -> None:
    wheel = Wheel(tmp_path)
    for partition, store in enumerate(filled(wheel, MANY)):
        check(store, partition)
    assert len(list((tmp_path / "ids").glob("*.log"))) == 1
    assert not [path for path in (tmp_path / "ids").iterdir() if path.is_dir()]
    wheel.close()
    again = Wheel(tmp_path)
    for partition in range(MANY):
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
