"""One suite for the shards of a worker, in a wheel and in a RocksDB: each goes and comes without
the others.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias
from unittest.mock import patch

import pytest
from structlog.testing import capture_logs

from delayservice.base.errors import StoreError
from delayservice.store.base import NO_MARK
from delayservice.store.offline import each_store
from delayservice.store.rocks import RocksOptions
from delayservice.store.rocksdb import RocksDatabase
from delayservice.store.wheel import Wheel, WheelOptions
from tests.shards import (
    SLOT_MS,
    START_MS,
    Shards,
    check,
    check_empty,
    everything,
    filled,
    opened,
    unopened,
)
from tests.wheels import TOPIC

Maker: TypeAlias = Callable[[], Shards]


@pytest.fixture(params=["wheel", "rocksdb"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Maker:
    if request.param == "wheel":
        return lambda: Wheel(tmp_path, WheelOptions(slot_ms=SLOT_MS, unused_s=100))
    return lambda: RocksDatabase(tmp_path, RocksOptions(unused_s=100))


def test_a_shard_that_leaves_and_returns_finds_nothing_of_its_former_life(make: Maker) -> None:
    shards = make()
    stores = filled(shards, 3)
    stores[0].sync()
    stores[1].close()
    shards.remove(TOPIC, 1)
    stores[0].sync()
    returned = opened(shards, 1, 0)
    check_empty(returned)
    again = [(START_MS + n, n, NO_MARK, b"again") for n in range(5)]
    returned.append(again, [], [], 5)
    shards.close()
    shards = make()
    for partition in (0, 2):
        check(opened(shards, partition, 13), partition)
    assert everything(opened(shards, 1, 5)) == again
    shards.close()


def test_a_shard_that_is_closed_is_as_it_was_when_it_is_opened_again(make: Maker) -> None:
    shards = make()
    filled(shards, 2)[1].close()
    check(opened(shards, 1, 13), 1)
    shards.close()


def test_a_shard_that_is_open_is_not_removed_and_not_opened_twice(make: Maker) -> None:
    shards = make()
    (store,) = filled(shards, 1)
    shards.remove(TOPIC, 0)
    with pytest.raises(StoreError, match="in use by this process"):
        unopened(shards, 0).open()
    check(store, 0)
    shards.close()


def test_a_shard_that_starts_over_stays_empty_after_a_crash(make: Maker) -> None:
    shards = make()
    stores = filled(shards, 3)
    stores[0].sync()
    stores[1].reset()
    check_empty(stores[1])
    shards.abandon()
    shards = make()
    for partition in (0, 2):
        check(opened(shards, partition, 13), partition)
    anew = opened(shards, 1, 0)
    check_empty(anew)
    anew.append([(START_MS, 0, NO_MARK, b"anew")], [], [], 1)
    anew.sync()
    shards.abandon()
    shards = make()
    assert everything(opened(shards, 1, 1)) == [(START_MS, 0, NO_MARK, b"anew")]
    shards.close()


def test_a_shard_that_no_lane_opens_for_long_is_removed(make: Maker, tmp_path: Path) -> None:
    shards = make()
    filled(shards, 2)
    shards.close()
    now_s = 10_000.0
    with patch("time.monotonic", lambda: now_s):
        shards = make()
        kept = opened(shards, 0, 13)
        for later_s in (99, 2):
            kept.append([], [], [], 13 + later_s)
            now_s += later_s
            with capture_logs() as logged:
                kept.sync()
    assert [line["event"] for line in logged] == ["unused_shard_removed"]
    shards.close()
    assert [shard for shard, _ in each_store(tmp_path)] == [(str(tmp_path), TOPIC, 0)]
    shards = make()
    check_empty(opened(shards, 1, 0))
    shards.close()
