"""The id index beside the wheel: it may be ahead of the horizon and must never be behind it."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from delayservice.base.errors import StoreError
from delayservice.contract.entry import OFFSET_MAX
from delayservice.engine.cursor import NO_GROUP, Cursor
from delayservice.store.base import NO_MARK
from delayservice.store.ids import IDS_OPTIONS, IdRows
from delayservice.store.rocks import open_database, prefix_of, read_keys
from tests.crash.model_log import ModelLog, read_all
from tests.rocks import opens_for_ever
from tests.wheels import LoneStore

LONG = os.environ.get("CRASH_MODE") == "long"
SYNCED, COUNT = 100, 200
IDS = "ids"
NOTHING_SETTLED = Cursor((0, 0), 0)


@pytest.fixture
def log() -> ModelLog:
    return ModelLog(COUNT, seed=5)


@pytest.fixture
def root(log: ModelLog, tmp_path: Path) -> Path:
    """A store that was synced at ``SYNCED``, went on and crashed; ``early`` are its first ids."""
    folder = tmp_path / "shard"
    store = LoneStore(folder)
    store.open()
    log.feed(store, 0, SYNCED // 2)
    store.sync()
    shutil.copytree(folder / IDS, tmp_path / "early")
    log.feed(store, SYNCED // 2, SYNCED)
    store.sync()
    log.feed(store, SYNCED, COUNT)
    store.abandon()
    return folder


def test_ids_and_marks_ahead_of_the_horizon_are_not_seen(log: ModelLog, root: Path) -> None:
    store = LoneStore(root)
    assert store.open() == SYNCED
    log.check_ids(store, SYNCED, NOTHING_SETTLED)
    assert [mark for mark, _ in store.marked_from(0)] == [m for m in log.marks if m < SYNCED]
    for record_id in {name[0] for name in log.named.values()}:
        found = store.latest_unmarked(record_id, OFFSET_MAX)
        assert found == store.latest_unmarked(record_id, SYNCED)
    log.feed(store, SYNCED, COUNT)
    log.check_ids(store, COUNT, NOTHING_SETTLED)
    store.close()


def test_records_read_differently_later_leave_no_id_rows(log: ModelLog, root: Path) -> None:
    # Above the horizon other contracts may hold by now: other keys, and records without an id.
    changed = ModelLog(COUNT, seed=5)
    for offset in [o for o in changed.named if o >= SYNCED]:
        record_id, key_ms, _, group = changed.named.pop(offset)
        if offset % 2:
            changed.frames[offset] = (key_ms + 50_000, *changed.frames[offset][1:])
            changed.named[offset] = (record_id, key_ms + 50_000, offset, group)
    changed.marks = {o: mark for o, mark in log.marks.items() if o < SYNCED}
    store = LoneStore(root)
    assert store.open() == SYNCED
    changed.feed(store, SYNCED, COUNT)
    changed.check_ids(store, COUNT, NOTHING_SETTLED)
    for record_id in {name[0] for name in log.named.values()}:
        assert store.latest_unmarked(record_id, COUNT) == changed.latest_unmarked(record_id)
    # All keys that they had before are past, and of those that they have now none is.
    past_ms = max(log.frames.values())[0] + 1_000
    store.prune(Cursor((past_ms, 0), 0))
    changed.check_ids(store, COUNT, Cursor((past_ms, 0), 0))
    store.close()


def test_a_closed_store_is_not_scanned(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LoneStore(root)
    store.open()
    store.close()
    monkeypatch.delattr(IdRows, "cut")
    store = LoneStore(root)
    assert store.open() == SYNCED
    store.close()


def test_ids_behind_the_horizon_start_over(log: ModelLog, root: Path, tmp_path: Path) -> None:
    shutil.rmtree(root / IDS)
    shutil.copytree(tmp_path / "early", root / IDS)
    _starts_over(log, root)


def test_lost_ids_mean_starting_over(log: ModelLog, root: Path) -> None:
    shutil.rmtree(root / IDS)
    _starts_over(log, root)


@pytest.mark.parametrize("kind", [b"n", b"d", b"m"])
def test_one_lost_row_of_ids_means_starting_over(log: ModelLog, root: Path, kind: bytes) -> None:
    database = open_database(root / IDS, IDS_OPTIONS)
    start = prefix_of(1) + kind
    (row,) = read_keys(database, start, prefix_of(1) + b"z", 1)
    assert row.startswith(start)
    database.delete(row)
    database.close()
    _starts_over(log, root)


@pytest.mark.parametrize("pattern", ["CURRENT", "MANIFEST-*"])
def test_damaged_ids_mean_starting_over(log: ModelLog, root: Path, pattern: str) -> None:
    for path in (root / IDS).glob(pattern):
        path.write_bytes(b"rubbish")
    _starts_over(log, root)


def test_a_mark_above_the_horizon_is_taken_back_although_h_has_passed_it(tmp_path: Path) -> None:
    # What comes again marks its record again; else that record would be delivered.
    name, key = b"id", (10**12, 1)
    store = LoneStore(tmp_path)
    store.open()
    store.append([(*key, NO_MARK, b"record")], [(name, *key, NO_GROUP)], [], 2)
    store.sync()
    store.append([], [], [(name, *key, 2)], 3)
    store.prune(Cursor((1, 0), 3))
    assert store.marked_from(0) == [(2, key)]
    store.abandon()
    store = LoneStore(tmp_path)
    assert store.open() == 2
    assert store.latest_unmarked(name, 2) == key
    assert store.marked_from(0) == []
    store.append([], [], [(name, *key, 2)], 3)
    store.sync()
    store.prune(Cursor((1, 0), 3))
    assert store.marked_from(0) == []
    assert store.latest_unmarked(name, 3) is None
    store.close()


def test_a_flipped_byte_of_ids_loses_nothing(log: ModelLog, root: Path, tmp_path: Path) -> None:
    store = LoneStore(root)
    store.open()
    store.wheel._ids.open().flush()
    log.feed(store, SYNCED, SYNCED + 20)  # so that table and write-ahead log both count
    store.sync()
    store.abandon()
    rng = random.Random(3)
    for path in sorted((root / IDS).iterdir()):
        data = path.read_bytes()
        count = len(data) // 5 if LONG else 8
        for position in rng.sample(range(len(data)), min(len(data), count)):
            copy = tmp_path / "copy"
            shutil.copytree(root, copy)
            changed = bytearray(data)
            changed[position] ^= 1 << rng.randrange(8)
            (copy / IDS / path.name).write_bytes(changed)
            if not opens_for_ever(path, bytes(changed)):
                _opens_whole(log, copy)
            shutil.rmtree(copy)


def _opens_whole(log: ModelLog, root: Path) -> None:
    """At once or after damage was met, with all that is below S."""
    for _ in range(3):
        store = LoneStore(root)
        stop = store.open()
        try:
            assert stop in {0, SYNCED + 20}
            log.check_ids(store, stop, NOTHING_SETTLED)
            log.feed(store, stop, COUNT)
            log.check_ids(store, COUNT, NOTHING_SETTLED)
        except StoreError:
            continue
        finally:
            store.abandon()
        return
    raise AssertionError("a damaged index was not put aside")


def test_damage_met_in_a_look_up_starts_the_store_over(log: ModelLog, root: Path) -> None:
    store = LoneStore(root)
    store.open()
    store.wheel._ids.open().flush()
    store.close()
    for path in (root / IDS).glob("*.sst"):
        path.write_bytes(bytes(b ^ 0xFF for b in path.read_bytes()[:200]) + path.read_bytes()[200:])
    store = LoneStore(root)
    try:
        if store.open():
            with pytest.raises(StoreError, match="id index"):
                store.marked_from(0)
    finally:
        store.abandon()
    _starts_over(log, root)


def _starts_over(log: ModelLog, root: Path) -> None:
    store = LoneStore(root)
    assert store.open() == 0
    assert read_all(store, (0, 0)) == []
    assert store.marked_from(0) == []
    log.feed(store, 0, COUNT)
    store.close()
    store = LoneStore(root)
    assert store.open() == COUNT
    assert read_all(store, (0, 0)) == log.held(COUNT, (0, 0))
    log.check_ids(store, COUNT, NOTHING_SETTLED)
    store.close()
