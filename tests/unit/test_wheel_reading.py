"""Looking into a wheel: only what is asked for is read, in bounded steps and past damage."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from connectors.kafka.clients import Clients
from connectors.kafka.scan import SCAN_STALL_S, SCAN_STEP_S, scan_partition
from delayservice.base.errors import KafkaEdgeError, StoreError
from delayservice.contract.codec import encode_payload
from delayservice.engine.cursor import Cursor
from delayservice.store.base import NO_MARK, Frame
from delayservice.store.digesting import DigestingStore
from delayservice.store.folder import ShardFolder
from delayservice.store.offline import EVERYTHING, Damage, ReadBounds, each_store, open_view, read
from delayservice.store.wheel import WheelOptions
from tests.wheels import SHARD, LoneStore, slot_files

FAR_MS = 10**15
START_MS = 1_795_226_400_000  # an hour
HOUR_MS = 3_600_000
SMALL = WheelOptions(slot_ms=900_000, buffer_bytes_max=20_000, near_bytes_max=20_000, handles_max=8)


def a_frame(key_ms: int, offset: int) -> Frame:
    return (key_ms, offset, NO_MARK, b"payload %d" % offset * 3)


def read_all(folder: Path, bounds: ReadBounds = EVERYTHING) -> tuple[list[Frame], list[Damage]]:
    """Everything that a reader finds, in key order."""
    frames: list[Frame] = []
    damages: list[Damage] = []
    for _, store in each_store(folder):
        assert not isinstance(store, StoreError)
        for found in read(store, bounds):
            if isinstance(found, Damage):
                damages.append(found)
            else:
                frames += found
    assert frames == sorted(frames)
    return frames, damages


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
        frames = [f for rows in read(seen) if not isinstance(rows, Damage) for f in rows]
    kept = [frame for frame in given if frame[0] >= START_MS + HOUR_MS]
    assert frames[-len(kept) :] == kept
    assert set(frames) <= set(given)
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


def frames() -> list[Frame]:
    payload = encode_payload(("t", -1, None, b"v", [], 0, None))
    return [(START_MS + o * HOURS * HOUR_MS // 90, o, NO_MARK, payload) for o in range(90)]


@pytest.mark.parametrize("damaged", range(HOURS))
def test_a_scan_skips_a_damaged_hour_and_ends(tmp_path: Path, damaged: int) -> None:
    store = LoneStore(tmp_path / "shard", HOURLY)
    store.open()
    store.append(frames(), [], [], 90)
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
