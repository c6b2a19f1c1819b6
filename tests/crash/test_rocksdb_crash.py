"""The RocksDB store with its log cut and its files damaged."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from errno import EACCES, EMFILE, ENOMEM, ENOSPC
from pathlib import Path
from unittest.mock import Mock, patch

import pytest
from rocksdict import Cache, Options

from delayservice.base.errors import StoreError
from delayservice.engine.cursor import Cursor
from delayservice.store.base import Frame
from delayservice.store.rocks import (
    OPENING,
    RocksOptions,
    _to_native,
    open_database,
    prefix_of,
    read_keys,
)
from delayservice.store.rocksdb import RocksDatabase
from tests.crash.model_log import START_MS, ModelLog, read_all
from tests.rocks import LoneRocks, opens_for_ever, records_in
from tests.wheels import LoneStore

LONG = os.environ.get("CRASH_MODE") == "long"
COUNT = 300
FAR_MS = 10**15
NOTHING_SETTLED = Cursor((0, 0), 0)


class Snapshot:
    """A store as a crash leaves it: never closed.

    Args:
        root: an empty folder.
        flushed: after which offsets the memory table becomes a table file, without which the
            newest horizon is in the write-ahead log only.
        options: options of the database.
    """

    def __init__(
        self, root: Path, flushed: Collection[int], options: RocksOptions | None = None
    ) -> None:
        self.log = ModelLog(COUNT, seed=7)
        self.root = root
        store = LoneRocks(root, options)
        store.open()
        for start in range(0, COUNT, 10):
            self.log.feed(store, start, start + 10)
            if start + 10 in flushed:
                store._db.flush()
        shutil.copytree(root, f"{root}-crashed", ignore=shutil.ignore_patterns("LOCK"))
        store.close()
        self.root = Path(f"{root}-crashed")

    def copied(self, folder: Path) -> Path:
        return Path(shutil.copytree(self.root, folder / "s"))

    def file(self, pattern: str) -> Path:
        return max((self.root / "db").glob(pattern), key=lambda path: path.stat().st_size)

    def check(self, root: Path, name: str, data: bytes) -> int:
        """Open a copy with one file changed; returns the horizon."""
        shutil.copytree(self.root, root)
        (root / name).write_bytes(data)
        found, stop = self._read(root)
        assert found == self.log.held(stop, (0, 0))
        store = LoneRocks(root)
        assert store.open() == stop
        self.log.check_label(store, stop, [10])
        self.log.check_ids(store, stop, NOTHING_SETTLED)
        for start in range(stop, COUNT, 50):
            self.log.feed(store, start, min(COUNT, start + 50))
        store._db.flush()
        store._db.compact_range(None, None)
        assert read_all(store, (0, 0)) == self.log.held(COUNT, (0, 0))
        store.close()
        shutil.rmtree(root)
        return stop

    @staticmethod
    def _read(root: Path) -> tuple[list[Frame], int]:
        """Open and read all; damage that is met while reading ends the process, so open again."""
        for _ in range(3):
            store = LoneRocks(root)
            stop = store.open()
            try:
                return read_all(store, (0, 0)), stop
            except StoreError:
                continue
            finally:
                store.abandon()
        raise AssertionError("a damaged store was not put aside")


def check_starts_over(root: Path) -> None:
    store = LoneRocks(root)
    assert store.open() == 0
    assert read_all(store, (0, 0)) == []
    store.close()


FLUSHED = {"log": (), "log-and-table": (200,), "table": (100, 200, 300)}
"""Where the newest horizon is: ``log-and-table`` has it in the log, and a table beside."""


SELDOM_READ = {"LOG", "OPTIONS-000007", "IDENTITY", "rocksdict-config.json"}


@pytest.fixture(scope="module", params=FLUSHED)
def snapshot(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return Snapshot(tmp_path_factory.mktemp("life") / "shard", FLUSHED[request.param])


@pytest.fixture(scope="module", params=["log-and-table", "table"])
def tables(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """One with a table file."""
    return Snapshot(tmp_path_factory.mktemp("life") / "shard", FLUSHED[request.param])


@pytest.fixture(scope="module", params=["log-and-table", "table"])
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """One with table files of many blocks, of which a start reads a few."""
    folder = tmp_path_factory.mktemp("life") / "shard"
    return Snapshot(folder, FLUSHED[request.param], RocksOptions(block_bytes=200))


def flipped(data: bytes, position: int, rng: random.Random) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1 << rng.randrange(8)
    return bytes(changed)


def positions(data: bytes, rng: random.Random, count: int, step: int) -> Collection[int]:
    """Which bytes to try: some, or in a long run every ``step``-th."""
    if LONG:
        return range(rng.randrange(step), len(data), step)
    return rng.sample(range(len(data)), min(len(data), count))


def test_the_log_cut_at_any_byte_gives_a_prefix(tmp_path: Path) -> None:
    snapshot = Snapshot(tmp_path / "life", FLUSHED["log-and-table"])
    path = snapshot.file("*.log")
    data = path.read_bytes()
    sizes = sorted(positions(data, random.Random(1), 60, 7))
    name = f"db/{path.name}"
    stops = [snapshot.check(tmp_path / str(size), name, data[:size]) for size in sizes]
    assert stops == sorted(stops)
    assert len(set(stops)) > 5


def test_a_flipped_byte_of_any_file_loses_no_record(snapshot: Snapshot, tmp_path: Path) -> None:
    # The store opens with the undamaged records, or starts over: at once, or at the damage.
    rng = random.Random(2)
    for path in sorted(snapshot.root.rglob("*")):
        data = path.read_bytes() if path.is_file() else b""
        name = str(path.relative_to(snapshot.root))
        for position in positions(data, rng, 2 if path.name in SELDOM_READ else 20, 5):
            changed = flipped(data, position, rng)
            if not opens_for_ever(path, changed):
                snapshot.check(tmp_path / "copy", name, changed)


def test_a_damaged_length_in_the_manifest_hides_no_table(tables: Snapshot, tmp_path: Path) -> None:
    # What reaches beyond the end of the file looks cut off to RocksDB.
    path = tables.file("MANIFEST-*")
    data, name = path.read_bytes(), f"db/{path.name}"
    stops = []
    for at, length in records_in(data):
        longer = data[: at + 4] + (length | 1 << 14).to_bytes(2, "little") + data[at + 6 :]
        stops.append(tables.check(tmp_path / "copy", name, longer))
    assert stops.count(0) > 2


def test_a_manifest_cut_between_records_hides_no_table(tables: Snapshot, tmp_path: Path) -> None:
    # RocksDB takes it for whole.
    path = tables.file("MANIFEST-*")
    data, name = path.read_bytes(), f"db/{path.name}"
    stops = [tables.check(tmp_path / "copy", name, data[:at]) for at, _ in records_in(data)]
    assert stops.count(0) > 2


def test_the_loss_of_the_older_of_two_logs_is_noticed(tmp_path: Path) -> None:
    # RocksDB reads those that there are.
    log = ModelLog(COUNT, seed=7)
    big = {offset: (*frame[:3], frame[3] * 60) for offset, frame in log.frames.items()}
    log.frames |= big
    root, crashed = tmp_path / "life", tmp_path / "crashed"
    with patch("delayservice.store.rocks._to_native", _unflushed):
        store = LoneRocks(root, RocksOptions(write_buffer_bytes=64 << 10))
        store.open()
        for start in range(0, COUNT, 10):
            log.feed(store, start, start + 10)
        shutil.copytree(root, crashed, ignore=shutil.ignore_patterns("LOCK"))
        store.close()
    logs = sorted((crashed / "db").glob("*.log"))
    assert len(logs) > 1
    copy = tmp_path / "copy"
    shutil.copytree(crashed, copy)
    (copy / "db" / logs[0].name).unlink()
    store = LoneRocks(copy)
    stop = store.open()
    assert read_all(store, (0, 0)) == log.held(stop, (0, 0))
    store.close()
    store = LoneRocks(crashed)
    assert store.open() == COUNT
    store.close()


def _unflushed(options: RocksOptions, block_cache: Cache) -> Options:
    """Options with which memory tables wait for others, and so their logs."""
    native = _to_native(options, block_cache)
    native.set_max_write_buffer_number(40)
    native.set_min_write_buffer_number_to_merge(20)
    return native


def test_a_database_whose_opening_never_ended_starts_over(tables: Snapshot, tmp_path: Path) -> None:
    # RocksDB waits for ever at a record of type 5 that is none; the supervisor ends the worker.
    path = tables.file("MANIFEST-*")
    data = path.read_bytes()
    at = [at for at, _ in records_in(data)][-1]
    (tables.root / "db" / path.name).write_bytes(data[: at + 6] + b"\5" + data[at + 7 :])
    root = tables.copied(tmp_path)
    path.write_bytes(data)
    code = f"from tests.rocks import *; LoneRocks(Path({str(root)!r})).open()"
    for unended in (1, 2):
        worker = subprocess.Popen([sys.executable, "-c", code])
        opening = root / "db" / OPENING
        while worker.poll() is None and not (
            opening.exists() and opening.stat().st_size == unended
        ):
            time.sleep(0.01)
        with suppress(subprocess.TimeoutExpired):
            worker.wait(2)
        worker.kill()
        worker.wait()
    check_starts_over(root)


def test_a_process_killed_while_it_opens_a_database_costs_no_row(tmp_path: Path) -> None:
    store = LoneRocks(tmp_path)
    store.open()
    ModelLog(COUNT, seed=7).feed(store, 0, COUNT)
    store.close()
    (tmp_path / "db" / OPENING).write_bytes(b".")
    assert store.open() == COUNT
    assert not (tmp_path / "db" / OPENING).exists()
    store.close()


def test_rows_are_counted_unless_the_database_was_closed(tmp_path: Path) -> None:
    log = ModelLog(COUNT, seed=7)
    counted: list[int] = []
    with patch.object(RocksDatabase, "_check_rows", lambda rocks: counted.append(rocks.records)):
        for stop in range(100, COUNT + 1, 100):
            store = LoneRocks(tmp_path)
            assert store.open() == stop - 100
            log.feed(store, stop - 100, stop)
            store.prune(Cursor(min(log.frames.values())[:2], stop - 50))
            store.close()
        assert counted == []
        store = LoneRocks(tmp_path)
        store.open()
        store.set_label(b"other")
        store.abandon()
        store = LoneRocks(tmp_path)
        store.open()
        store.close()
    assert len(counted) == 1


@pytest.mark.parametrize("make", [LoneRocks, LoneStore])
def test_rows_are_counted_right(make: type[LoneRocks | LoneStore], tmp_path: Path) -> None:
    log = ModelLog(COUNT, seed=7)
    store = make(tmp_path)
    store.open()
    with patch("delayservice.store.rocksdb._SINGLES_MAX", 5):
        for start in range(0, COUNT, 10):
            log.feed(store, start, start + 10)
            k_ms = START_MS + start * 20
            store.prune(Cursor((k_ms, 0), start))
            held = log.held(start + 10, (k_ms + 2_000, 0))
            store.rebuild(k_ms + 2_000, k_ms + 3_000, held)
            store.sync()
    store.abandon()
    store = make(tmp_path)
    assert store.open() == COUNT
    assert read_all(store, (k_ms, 0)) == log.held(COUNT, (k_ms, 0))
    store.close()


@pytest.mark.parametrize("kind", [b"f", b"n", b"d", b"m"])
def test_a_lost_row_of_any_kind_is_noticed(snapshot: Snapshot, kind: bytes, tmp_path: Path) -> None:
    root = snapshot.copied(tmp_path)
    database = open_database(root / "db", RocksOptions())
    start = prefix_of(1) + kind
    (row,) = read_keys(database, start, prefix_of(1) + b"z", 1)
    assert row.startswith(start)
    database.delete(row)
    database.close()
    check_starts_over(root)


@pytest.mark.parametrize("changed", [b"", b"\0" * 73, b"rocksdb", b"wheel 3", b"rocksdb 99"])
def test_a_damaged_version_is_no_refusal(tables: Snapshot, changed: bytes, tmp_path: Path) -> None:
    # Without its line end or its checksum, it is neither another backend's nor a newer one's.
    assert tables.check(tmp_path / "copy", "VERSION", changed) == 0


@pytest.mark.parametrize("pattern", ["*.log", "MANIFEST-*", "CURRENT"])
def test_a_lost_file_is_noticed(snapshot: Snapshot, pattern: str, tmp_path: Path) -> None:
    _check_lost(snapshot, pattern, tmp_path)


def test_a_lost_table_is_noticed(tables: Snapshot, tmp_path: Path) -> None:
    _check_lost(tables, "*.sst", tmp_path)


def _check_lost(snapshot: Snapshot, pattern: str, tmp_path: Path) -> None:
    path = snapshot.file(pattern)
    root = snapshot.copied(tmp_path)
    (root / "db" / path.name).unlink()
    store = LoneRocks(root)
    stop = store.open()
    assert read_all(store, (0, 0)) == snapshot.log.held(stop, (0, 0))
    store.close()


def _read(store: LoneRocks) -> None:
    store.read_due((0, 0), FAR_MS, COUNT)


def _scan(store: LoneRocks) -> None:
    list(store.scanner().frames((0, 0), FAR_MS))


def _prune(store: LoneRocks) -> None:
    store.prune(Cursor((FAR_MS, 0), COUNT))


def _look_up(store: LoneRocks) -> None:
    store.latest_unmarked(b"id-77", COUNT)  # in the range of each table, and in none


def _compact(store: LoneRocks) -> None:
    """A compaction in the background, which the next write hears of."""
    with suppress(Exception):
        store._db.compact_range(None, None)
    store.append([], [], [], COUNT)
    store.sync()


@pytest.mark.parametrize("deed", [_read, _scan, _prune, _look_up, _compact])
def test_damage_met_later_starts_over(
    small: Snapshot, deed: Callable[[LoneRocks], None], tmp_path: Path
) -> None:
    # The process ends once; its next life starts over.
    root = small.copied(tmp_path)
    store = LoneRocks(root, RocksOptions(block_cache_bytes=1))  # what is read comes from the disk
    with patch.object(RocksDatabase, "_check_rows"):  # it would have read all before
        assert store.open() == COUNT
    for path in (root / "db").glob("*.sst"):
        data = path.read_bytes()
        with path.open("r+b") as file:
            file.write(bytes(b ^ 0x55 for b in data))
    with pytest.raises(StoreError, match="put aside and rebuilt from Kafka"):
        deed(store)
    store.abandon()
    check_starts_over(root)
    assert len(list((root / "quarantine").iterdir())) == 1


def test_damage_met_at_close_condemns_the_database(tables: Snapshot, tmp_path: Path) -> None:
    # RocksDB flushes when it is closed.
    root = tables.copied(tmp_path)
    store = LoneRocks(root)
    store.open()
    damage = Exception("Corruption: block checksum mismatch")
    real, store.rocks._database = store._db, Mock(close=Mock(side_effect=damage))
    store.abandon()
    real.close()
    check_starts_over(root)


@pytest.mark.parametrize("code", [ENOSPC, EMFILE, EACCES, ENOMEM])
def test_lack_of_space_or_rights_is_no_damage(tables: Snapshot, code: int, tmp_path: Path) -> None:
    root = tables.copied(tmp_path)
    why = Exception(f"IO error: {os.strerror(code)}: While open a file: {root}/db/000009.sst")
    for _ in range(2):  # the lock is given back
        store = LoneRocks(root)
        with (
            patch("delayservice.store.rocksdb.open_database", side_effect=why),
            pytest.raises(StoreError, match=os.strerror(code)),
        ):
            store.open()
    store = LoneRocks(root)
    assert store.open() == COUNT
    store.close()
