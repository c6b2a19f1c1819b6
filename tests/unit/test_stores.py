"""Folders of stores, and syncs that run beside the loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from delayservice.base.errors import StoreError
from delayservice.config.settings import Settings
from delayservice.engine.cursor import NO_GROUP, START_KEY, Cursor
from delayservice.process.stores import Stores, remove_strangers
from delayservice.store.base import NO_MARK, Frame
from delayservice.store.files import Files
from delayservice.store.folder import version_text
from delayservice.store.rocksdb import FORMAT as ROCKS_FORMAT
from delayservice.store.wheel import FORMAT as WHEEL_FORMAT
from delayservice.store.wheel import WheelOptions
from tests.wheels import LoneStore, slot_files

NEWEST = {"wheel": WHEEL_FORMAT, "rocksdb": ROCKS_FORMAT}
both_kinds = pytest.mark.parametrize("kind", NEWEST)


def settings_of(state: Path, store: str = "wheel", workers: int = 2) -> Settings:
    settings = Settings()
    node = settings.node.model_copy(update={"state_dir": state, "store": store, "workers": workers})
    return settings.model_copy(update={"node": node})


def stamped(folder: Path, kind: str, version: int) -> Path:
    folder.mkdir(parents=True)
    (folder / "VERSION").write_bytes(version_text(kind, version))
    return folder


@both_kinds
def test_stores_of_workers_that_are_gone_are_removed(tmp_path: Path, kind: str) -> None:
    home, newest = tmp_path / kind, NEWEST[kind]
    kept = [stamped(home / str(index), kind, newest) for index in range(2)]
    gone = [stamped(home / name, kind, newest) for name in ("2", "10")]
    with capture_logs() as logged:
        remove_strangers(settings_of(tmp_path, kind))
    assert all((folder / "VERSION").is_file() for folder in kept)
    assert not any(folder.exists() for folder in gone)
    assert [line["event"] for line in logged] == [f"{kind}_removed"] * 2


@both_kinds
def test_a_newer_format_is_refused_and_left_as_it_is(tmp_path: Path, kind: str) -> None:
    newer = stamped(tmp_path / kind / "9", kind, NEWEST[kind] + 1)
    with pytest.raises(StoreError, match="newer"):
        remove_strangers(settings_of(tmp_path, kind))
    assert (newer / "VERSION").is_file()


@both_kinds
def test_a_folder_in_use_is_refused_and_left_as_it_is(tmp_path: Path, kind: str) -> None:
    other = Stores(settings_of(tmp_path, kind, workers=4), 3)
    store = other.shard("topic", 7)
    store.open()
    with pytest.raises(StoreError, match="in use"):
        remove_strangers(settings_of(tmp_path, kind))
    assert store.sync() == 0
    store.close()


def test_a_node_with_another_store_leaves_wheels_alone(tmp_path: Path) -> None:
    wheel = stamped(tmp_path / "wheel" / "9", "wheel", NEWEST["wheel"])
    remove_strangers(settings_of(tmp_path, "rocksdb"))
    assert wheel.is_dir()


@both_kinds
def test_slices_are_found_on_disk_until_their_stores_go(tmp_path: Path, kind: str) -> None:
    settings = settings_of(tmp_path, kind)
    stores = Stores(settings, 0)
    for partition in (3, 5):
        store = stores.shard("topic", partition)
        store.open()
        store.append([(10_000, 1, -1, b"record")], [], [], 2)
        store.close()
    again = Stores(settings, 0)
    assert again.open() == {3, 5}
    again.remove("topic", 3)
    kept = again.shard("topic", 5)
    assert kept.open() == 2
    kept.close()
    assert again.open() == {5}
    again.close()


# --- syncs of the wheel that run beside delivery --------------------------------------------------


FAR_MS = 10**15


class SlowFiles(Files):
    """Fsyncs of slot files wait until they may go on; some fail."""

    def __init__(self, may_go_on: threading.Event, *, fail: bool = False) -> None:
        super().__init__()
        self._may_go_on = may_go_on
        self.fail = fail

    def sync_file(self, path: str) -> None:
        if "/slots/" in path:
            assert self._may_go_on.wait(10)
            if self.fail:
                raise StoreError(f"can't fsync {path}")
        super().sync_file(path)


def frames(start: int, stop: int) -> list[Frame]:
    return [(1_000_000 + o % 7_000, o, NO_MARK, b"%d" % o) for o in range(start, stop)]


@pytest.fixture
def may_go_on() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def wait_until_durable(store: LoneStore, offset: int) -> None:
    deadline = time.monotonic() + 10
    while store.stats().durable_offset < offset:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_storing_goes_on_while_the_disk_syncs(tmp_path: Path, may_go_on: threading.Event) -> None:
    store = LoneStore(tmp_path, files=SlowFiles(may_go_on))
    store.open()
    store.append(frames(0, 100), [(b"a", 1_000_060, 60, NO_GROUP)], [], 100)
    store.sync(wait=False)
    store.append(frames(100, 200), [(b"b", 1_000_100, 100, NO_GROUP)], [], 200)
    assert store.read_due(START_KEY, FAR_MS, 1000) == sorted(frames(0, 200))
    store.prune(Cursor((1_000_050, 50), 200))
    store.sync(wait=False)  # one at a time
    assert store.stats().durable_offset == 0
    may_go_on.set()
    wait_until_durable(store, 100)
    assert store.stats().durable_offset == 100
    store.abandon()
    store = LoneStore(tmp_path)
    assert store.open() == 100
    assert store.read_due((1_000_050, 50), FAR_MS, 1000) == sorted(frames(51, 100))
    assert store.latest_unmarked(b"a", 100) == (1_000_060, 60)
    store.close()


def test_a_sync_is_flushed_little_by_little(tmp_path: Path, may_go_on: threading.Event) -> None:
    may_go_on.set()
    options = WheelOptions(slot_ms=1_000, buffer_bytes_max=16 << 20)
    store = LoneStore(tmp_path, options, SlowFiles(may_go_on))
    store.open()
    payload = b"x" * 1_000_000
    store.append([(o * 1000, o, NO_MARK, payload) for o in range(20)], [], [], 20)
    store.sync(wait=False)
    flushed = [path for path in slot_files(tmp_path) if path.stat().st_size]
    assert 0 < len(flushed) < 20
    wait_until_durable(store, 20)
    store.close()


def test_a_failed_fsync_is_raised_again_later(tmp_path: Path, may_go_on: threading.Event) -> None:
    store = LoneStore(tmp_path, files=SlowFiles(may_go_on, fail=True))
    store.open()
    store.append(frames(0, 100), [], [], 100)
    store.sync(wait=False)
    may_go_on.set()
    with pytest.raises(StoreError, match="fsync"):
        wait_until_durable(store, 100)
    with pytest.raises(StoreError, match="fsync"):
        store.read_due(START_KEY, FAR_MS, 10)
    with pytest.raises(StoreError, match="fsync"):
        store.append(frames(100, 200), [], [], 200)
    with pytest.raises(StoreError, match="fsync"):
        store.sync()
    store.abandon()
    store = LoneStore(tmp_path)
    assert store.open() == 0
    store.close()


def test_ids_that_come_during_a_sync_wait_for_the_next(
    tmp_path: Path, may_go_on: threading.Event
) -> None:
    store = LoneStore(tmp_path, files=SlowFiles(may_go_on))
    store.open()
    store.set_label(b"old")
    store.append(frames(0, 100), [], [], 100)
    store.sync(wait=False)
    store.set_label(b"new, and longer")
    store.append(frames(100, 200), [(b"b", 1_000_100, 100, NO_GROUP)], [], 200)
    may_go_on.set()
    wait_until_durable(store, 100)
    store.abandon()
    store = LoneStore(tmp_path)
    assert (store.open(), store.label) == (100, b"old")
    assert store.latest_unmarked(b"b", 200) is None
    store.close()
