"""The RocksDB store with its log cut and its files damaged."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from delayservice.core.cursor import Cursor
from delayservice.errors import StoreError
from delayservice.store.base import Frame
from delayservice.store.rocksdb import RocksStore
from tests.crash.model_log import ModelLog, read_all

LONG = os.environ.get("CRASH_MODE") == "long"
COUNT = 300
NOTHING_SETTLED = Cursor((0, 0), 0)


class Snapshot:
    """A store as a crash leaves it: never closed, its last batches in the log only."""

    def __init__(self, root: Path, *, flushed: bool) -> None:
        self.log = ModelLog(COUNT, seed=7)
        self.root = root
        self.flushed = flushed
        store = RocksStore(root)
        store.open()
        for start in range(0, COUNT, 10):
            self.log.feed(store, start, start + 10)
            if flushed and start == 200:
                store._db.flush()
        shutil.copytree(root, f"{root}-crashed", ignore=shutil.ignore_patterns("LOCK"))
        store.close()
        self.root = Path(f"{root}-crashed")

    def file(self, pattern: str) -> Path:
        return max((self.root / "db").glob(pattern), key=lambda path: path.stat().st_size)

    def check(self, root: Path, name: str, data: bytes) -> int:
        """Open a copy with one file changed; returns the horizon."""
        shutil.copytree(self.root, root)
        (root / "db" / name).write_bytes(data)
        found, stop = self._read(root)
        assert found == self.log.held(stop, (0, 0))
        store = RocksStore(root)
        assert store.open() == stop
        self.log.check_label(store, stop, [10])
        self.log.check_ids(store, stop, NOTHING_SETTLED)
        for start in range(stop, COUNT, 50):
            self.log.feed(store, start, min(COUNT, start + 50))
        assert read_all(store, (0, 0)) == self.log.held(COUNT, (0, 0))
        store.close()
        shutil.rmtree(root)
        return stop

    @staticmethod
    def _read(root: Path) -> tuple[list[Frame], int]:
        """Open and read all; damage that is met while reading ends the process, so open again."""
        for _ in range(3):
            store = RocksStore(root)
            stop = store.open()
            try:
                return read_all(store, (0, 0)), stop
            except StoreError:
                continue
            finally:
                store.abandon()
        raise AssertionError("a damaged store was not put aside")


@pytest.fixture(scope="module", params=[False, True], ids=["log", "log-and-table"])
def snapshot(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return Snapshot(tmp_path_factory.mktemp("life") / "shard", flushed=request.param)


def test_the_log_cut_at_any_byte_gives_a_prefix(snapshot: Snapshot, tmp_path: Path) -> None:
    path = snapshot.file("*.log")
    data = path.read_bytes()
    rng = random.Random(1)
    sizes = range(0, len(data), 7) if LONG else sorted(rng.sample(range(len(data)), 60))
    stops = [snapshot.check(tmp_path / str(size), path.name, data[:size]) for size in sizes]
    assert stops == sorted(stops)
    assert len(set(stops)) > 5


@pytest.mark.parametrize("pattern", ["*.log", "MANIFEST-*", "CURRENT", "*.sst"])
def test_a_flipped_byte_is_never_delivered_and_skips_nothing(
    snapshot: Snapshot, pattern: str, tmp_path: Path
) -> None:
    if pattern == "*.sst" and not snapshot.flushed:
        pytest.skip("there is no table file yet")
    path = snapshot.file(pattern)
    data = path.read_bytes()
    rng = random.Random(2)
    count = len(data) if LONG else min(len(data), 25)
    for position in rng.sample(range(len(data)), count):
        flipped = bytearray(data)
        flipped[position] ^= 1 << rng.randrange(8)
        snapshot.check(tmp_path / str(position), path.name, bytes(flipped))


@pytest.mark.parametrize("pattern", ["*.log", "MANIFEST-*", "CURRENT", "*.sst"])
def test_a_lost_file_is_noticed(snapshot: Snapshot, pattern: str, tmp_path: Path) -> None:
    if pattern == "*.sst" and not snapshot.flushed:
        pytest.skip("there is no table file yet")
    path = snapshot.file(pattern)
    root = tmp_path / "s"
    shutil.copytree(snapshot.root, root)
    (root / "db" / path.name).unlink()
    store = RocksStore(root)
    stop = store.open()
    assert read_all(store, (0, 0)) == snapshot.log.held(stop, (0, 0))
    store.close()
