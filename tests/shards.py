"""Many shards in one wheel or in one RocksDB, and what their tests fill them with."""

from __future__ import annotations

from random import Random
from typing import TypeAlias

from delayservice.engine.cursor import NO_GROUP, START_KEY
from delayservice.store.base import NO_MARK, Frame, Store
from delayservice.store.rocksdb import RocksDatabase
from delayservice.store.wheel import Wheel
from tests.wheels import TOPIC

Shards: TypeAlias = Wheel | RocksDatabase

FAR_MS = 10**15
START_MS = 1_800_000_000_000
SLOT_MS = 10_000


def unopened(shards: Shards, partition: int) -> Store:
    return shards.store(TOPIC, partition)


def opened(shards: Shards, partition: int, stop_offset: int | None = None) -> Store:
    """A shard that is opened, with this horizon if there is one to check."""
    store = unopened(shards, partition)
    found = store.open()
    assert stop_offset in (None, found)
    return store


def rows_of(partition: int, count: int = 12, slots: int = 6) -> list[Frame]:
    rng = Random(partition)
    keys = [START_MS + rng.randrange(slots * SLOT_MS) for _ in range(count)]
    return [(key, n, NO_MARK, b"%d of %d" % (n, partition)) for n, key in enumerate(keys)]


def filled(shards: Shards, partitions: int, with_ids: int = 10**9) -> list[Store]:
    """Shards with records and a label, the first ``with_ids`` also with the same two ids, of which
    one is cancelled.
    """
    stores = [opened(shards, partition) for partition in range(partitions)]
    for partition, store in enumerate(stores):
        rows = rows_of(partition)
        named = [(b"id", *rows[0][:2], NO_GROUP), (b"other", *rows[1][:2], NO_GROUP)]
        has_ids = partition < with_ids
        store.set_label(b"label %d" % partition)
        store.append(rows, named * has_ids, [(*named[1][:3], 12)] * has_ids, 13)
    return stores


def everything(store: Store) -> list[Frame]:
    found: list[Frame] = []
    while part := store.read_due(found[-1][:2] if found else START_KEY, FAR_MS, 50):
        found += part
    return found


def check(store: Store, partition: int) -> None:
    """That a shard holds what it was filled with, and nothing of another."""
    rows = rows_of(partition)
    expected = sorted([rows[0], (*rows[1][:2], 12, rows[1][3]), *rows[2:]])
    assert everything(store) == expected
    assert store.label == b"label %d" % partition
    assert store.latest_unmarked(b"id", 13) == rows[0][:2]
    assert store.latest_unmarked(b"other", 13) is None
    assert store.marked_from(0) == [(12, rows[1][:2])]
    bound = store.next_due_ms(START_KEY)
    assert bound is not None
    assert expected[0][0] - SLOT_MS < bound <= expected[0][0]
    assert store.stats().pending == 12


def check_empty(store: Store) -> None:
    assert everything(store) == []
    assert (store.label, store.marked_from(0), store.stats().pending) == (b"", [], 0)
    assert store.latest_unmarked(b"id", 13) is None
