"""Folders of stores: syncs beside the loop, and readers from outside."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from connectors.kafka.clients import Clients
from connectors.kafka.scan import SCAN_STALL_S, SCAN_STEP_S, scan_partition
from delayservice.base.errors import KafkaEdgeError, StoreError
from delayservice.config.settings import Settings
from delayservice.contract.codec import encode_payload
from delayservice.engine.cursor import NO_GROUP, START_KEY, Cursor
from delayservice.process.stores import Stores, remove_strangers
from delayservice.replicas.digest_rows import Damage
from delayservice.store.base import NO_MARK, Frame
from delayservice.store.digesting import DigestingStore
from delayservice.store.files import Files
from delayservice.store.folder import ShardFolder, version_text
from delayservice.store.offline import EVERYTHING, ReadBounds, each_store, open_view, read
from delayservice.store.rocksdb import FORMAT as ROCKS_FORMAT
from delayservice.store.wheel import FORMAT as WHEEL_FORMAT
from delayservice.store.wheel import WheelOptions
from tests.wheels import SHARD, LoneStore, slot_files

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


def test_ids_added_during_a_sync_are_not_in_it(tmp_path: Path, may_go_on: threading.Event) -> None:
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


# --- looking into a wheel: only what is asked for is read, in bounded steps and past damage -------


START_MS = 1_795_226_400_000  # an hour
HOUR_MS = 3_600_000
SMALL = WheelOptions(slot_ms=900_000, buffer_bytes_max=20_000, near_bytes_max=20_000, handles_max=8)


def a_frame(key_ms: int, offset: int) -> Frame:
    return (key_ms, offset, NO_MARK, b"payload %d" % offset * 3)


def read_all(folder: Path, bounds: ReadBounds = EVERYTHING) -> tuple[list[Frame], list[Damage]]:
    """Everything that a reader finds, in key order."""
    hourly_frames: list[Frame] = []
    damages: list[Damage] = []
    for _, store in each_store(folder):
        assert not isinstance(store, StoreError)
        for found in read(store, bounds):
            if isinstance(found, Damage):
                damages.append(found)
            else:
                hourly_frames += found
    assert hourly_frames == sorted(hourly_frames)
    return hourly_frames, damages


def scan(store: LoneStore) -> list[Frame]:
    return list(store.scanner().frames((0, -1), FAR_MS))


def opened(folder: Path) -> LoneStore:
    store = LoneStore(folder, SMALL)
    store.open()
    return store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "wheel" / "0"


@pytest.fixture
def store(folder: Path) -> Iterator[LoneStore]:
    found = opened(folder)
    yield found
    found.abandon()


def three_hours(store: LoneStore, count: int = 900) -> list[Frame]:
    given = [a_frame(START_MS + offset * 12_007 % (3 * HOUR_MS), offset) for offset in range(count)]
    store.append(given, [], [], count)
    store.sync()
    return sorted(given)


def test_only_what_is_asked_for_is_read(store: LoneStore, folder: Path) -> None:
    given = three_hours(store)
    bounds = ReadBounds(START_MS + HOUR_MS + 7, START_MS + 2 * HOUR_MS - 7)
    expected = [frame for frame in given if bounds.from_ms <= frame[0] < bounds.to_ms]
    first = slot_files(folder)[0]
    first.write_bytes(b"rubbish")
    assert read_all(folder, bounds) == (expected, [])


def test_a_snapshot_is_read_as_it_was_taken(store: LoneStore, folder: Path) -> None:
    given = three_hours(store)
    with open_view(folder) as view:
        store.append([a_frame(START_MS + 5, 901)], [], [], 902)
        store.prune(Cursor((START_MS + HOUR_MS, 0), 900))
        store.sync()
        seen = view.store(*SHARD)
        seen.open()
        hourly_frames = [f for rows in read(seen) if not isinstance(rows, Damage) for f in rows]
    kept = [frame for frame in given if frame[0] >= START_MS + HOUR_MS]
    assert hourly_frames[-len(kept) :] == kept
    assert set(hourly_frames) <= set(given)
    expected = [frame for frame in scan(store) if frame[0] >= START_MS + HOUR_MS]
    assert expected == kept


def test_bytes_beyond_the_horizon_stay_in_the_folder(store: LoneStore, folder: Path) -> None:
    # The snapshot's files are links, and a store that recovers cuts its files.
    three_hours(store)
    rows = [a_frame(START_MS + n, 1_000 + n) for n in range(900)]
    store.append(rows, [], [], 2_000)
    store.wheel.slots.flush_fullest(0)
    sizes = [path.stat().st_size for path in slot_files(folder)]
    read_all(folder)
    assert [path.stat().st_size for path in slot_files(folder)] == sizes
    assert store.sync() == 2_000
    assert len(scan(store)) == 1_800


def test_shards_are_found_from_every_folder_above_them(store: LoneStore, folder: Path) -> None:
    three_hours(store)
    for root in (folder, folder.parent, folder.parents[1]):
        found = [shard for shard, _ in each_store(root)]
        assert found == [ShardFolder(str(folder), *SHARD)]
    with pytest.raises(StoreError, match="holds no shard"):
        list(each_store(folder / "slots"))


def test_a_reader_needs_no_right_to_write(store: LoneStore, folder: Path) -> None:
    given = three_hours(store)
    copy = folder.parents[1] / "copy"
    shutil.copytree(folder, copy)
    for path in copy.rglob("*"):
        path.chmod(0o500 if path.is_dir() else 0o400)
    assert read_all(copy) == (given, [])


# --- a scan of a copy comes to its end, wherever the damage lies ----------------------------------


HOURS = 3
TURNS_MAX = 20
HOURLY = WheelOptions(slot_ms=HOUR_MS)


def hourly_frames() -> list[Frame]:
    payload = encode_payload(("t", -1, None, b"v", [], 0, None))
    return [(START_MS + o * HOURS * HOUR_MS // 90, o, NO_MARK, payload) for o in range(90)]


@pytest.mark.parametrize("damaged", range(HOURS))
def test_a_scan_skips_a_damaged_hour_and_ends(tmp_path: Path, damaged: int) -> None:
    store = LoneStore(tmp_path / "shard", HOURLY)
    store.open()
    store.append(hourly_frames(), [], [], 90)
    store.close()
    victim = slot_files(tmp_path / "shard")[damaged]
    victim.write_bytes(victim.read_bytes()[:-1] + b"\xff")
    copy = DigestingStore(LoneStore(tmp_path / "shard", HOURLY))
    copy.open()
    copy.begin_scan()
    turns = 1
    while not copy.scan_on():
        turns += 1
        assert turns < TURNS_MAX
    assert [(d.start_ms, d.stop_ms) for d in copy.damaged] == [
        (START_MS + damaged * HOUR_MS, START_MS + (damaged + 1) * HOUR_MS)
    ]
    copy.digest.finish()
    assert copy.digest.sums is not None
    assert copy.digest.sums.totals()[1] == 60
    copy.close()


# --- a scan of a log gives its caller a turn although no record comes -----------------------------


class Silent:
    """A consumer of a log whose next record is behind an open transaction."""

    now_s = 0.0
    is_closed = False

    def assign(self, _: object) -> None: ...

    def poll(self, timeout_s: float) -> None:
        self.now_s += timeout_s

    def close(self) -> None:
        self.is_closed = True


def test_a_scan_yields_in_bounded_steps_until_it_has_waited_long_enough() -> None:
    silent = Silent()
    clients = Clients(consumer=lambda _: cast("Any", silent), monotonic_s=lambda: silent.now_s)
    steps = scan_partition({}, "delay_topic_any", 0, 7, 9, clients)
    for number in range(1, 100):
        assert next(steps) == (("delay_topic_any", 0), 7, [], 7, -1)
        assert silent.now_s == pytest.approx(number * SCAN_STEP_S)
    with pytest.raises(KafkaEdgeError, match="nothing from offset 7"):
        list(steps)
    assert silent.now_s == pytest.approx(SCAN_STALL_S, abs=2 * SCAN_STEP_S)
    assert silent.is_closed
