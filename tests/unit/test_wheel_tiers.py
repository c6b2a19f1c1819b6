"""Hours, minutes and seconds of the wheel: what is kept where, and when it is moved."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from delayservice.core.cursor import START_KEY, Cursor
from delayservice.errors import SlotDamagedError, StoreError
from delayservice.store.base import NO_MARK, Frame
from delayservice.store.files import Files
from delayservice.store.wheel import WheelOptions, WheelStore
from delayservice.store.wheel.block import seed_of

START_MS = 1_800_000_000_000 // 3_600_000 * 3_600_000
HOUR_MS = 3_600_000
FAR_MS = 10**15
SMALL = WheelOptions(open_bytes_min=20_000, open_rows=100, buffer_bytes_max=100_000)


def frames(count: int, spread_ms: int, start_ms: int = START_MS) -> list[Frame]:
    rng = random.Random(1)
    return [(start_ms + rng.randrange(spread_ms), o, NO_MARK, b"%d" % o) for o in range(count)]


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.glob("slots/*/*"))


def read_all(store: WheelStore, upto_ms: int, limit: int = 500) -> list[Frame]:
    found: list[Frame] = []
    while part := store.read_due(found[-1][:2] if found else (0, -1), upto_ms, limit):
        found += part
    return found


def test_a_fortnight_takes_a_file_for_each_hour(tmp_path: Path) -> None:
    store = WheelStore(tmp_path)
    store.open()
    store.read_due((0, -1), START_MS - 3 * HOUR_MS, 1)
    store.append(frames(20_000, 336 * HOUR_MS), [], [], 20_000)
    store.sync()
    assert len(names(tmp_path)) == 336
    assert all(name.endswith(".3600") for name in names(tmp_path))
    store.close()


def test_what_is_near_is_kept_by_the_minute_and_the_second(tmp_path: Path) -> None:
    store = WheelStore(tmp_path)
    store.open()
    store.read_due((0, -1), START_MS, 1)
    near = (START_MS + 10_000, 1, NO_MARK, b"")
    soon = (START_MS + 30 * 60_000, 2, NO_MARK, b"")
    later = (START_MS + 2 * HOUR_MS, 3, NO_MARK, b"")
    store.append([near, soon, later], [], [], 4)
    store.sync()
    assert names(tmp_path) == [
        f"{near[0] // 1000}",
        f"{soon[0] // 1000}.60",
        f"{later[0] // 1000}.3600",
    ]
    assert read_all(store, FAR_MS) == [near, soon, later]
    store.close()


def test_a_large_hour_is_opened_little_by_little_before_it_is_due(tmp_path: Path) -> None:
    store = WheelStore(tmp_path, SMALL)
    store.open()
    given = frames(2_000, HOUR_MS)
    for start in range(0, 2_000, 500):
        store.append(given[start : start + 500], [], [], start + 500)
        store.sync()
    hour = f"{START_MS // 1000}.3600"
    assert names(tmp_path) == [hour]
    assert store.read_due((0, -1), START_MS - 2 * HOUR_MS, 10) == []
    store.sync()
    assert names(tmp_path) == [hour]
    calls = 0
    while hour in names(tmp_path):
        assert store.read_due((0, -1), START_MS - HOUR_MS // 2, 10) == []
        assert store.stats().pending == 2_000
        calls += 1
        store.sync()
    assert calls > 1
    assert len(names(tmp_path)) == 60
    assert read_all(store, FAR_MS) == sorted(given)
    store.close()


def test_an_hour_that_is_due_before_all_of_it_has_moved_is_read_in_order(tmp_path: Path) -> None:
    store = WheelStore(tmp_path, SMALL)
    store.open()
    given = frames(1_050, HOUR_MS)
    for start, stop in ((0, 500), (500, 1_000), (1_000, 1_050)):
        store.append(given[start:stop], [], [], stop)
        store.sync()
    for _ in range(2):
        store.read_due((0, -1), START_MS - HOUR_MS // 2, 10)
    assert store._table.held()[0].count == 50
    more = [(frame[0], 1_050 + frame[1], *frame[2:]) for frame in given[:20]]
    store.append(more, [], [], 1_070)
    store.sync()
    store.abandon()
    store = WheelStore(tmp_path, SMALL)
    assert store.open() == 1_070
    assert store.stats().pending == 1_070
    assert read_all(store, FAR_MS) == sorted(given + more)
    store.close()


def test_an_hour_of_another_life_is_noticed_while_it_is_opened(tmp_path: Path) -> None:
    stores = []
    for life in (0, 1):
        store = WheelStore(tmp_path / str(life), SMALL)
        store.open()
        given = [(ms, o, mark, b"%d%04d" % (life, o)) for ms, o, mark, _ in frames(500, HOUR_MS)]
        store.append(given, [], [], 500)
        store.sync()
        stores.append(store)
    one, other = (next((tmp_path / str(life)).glob("slots/*/*")) for life in (0, 1))
    assert one.stat().st_size == other.stat().st_size
    one.write_bytes(other.read_bytes())
    with pytest.raises(SlotDamagedError):
        read_all(stores[0], FAR_MS)
    for store in stores:
        store.close()


def test_a_small_hour_is_read_as_it_is(tmp_path: Path) -> None:
    store = WheelStore(tmp_path, SMALL)
    store.open()
    given = sorted(frames(50, HOUR_MS))
    store.append(given, [], [], 50)
    store.sync()
    assert read_all(store, FAR_MS, 7) == given
    store.prune(Cursor(given[30][:2], 50))
    assert store.stats().pending == 19
    store.sync()
    assert names(tmp_path) == [f"{START_MS // 1000}.3600"]
    assert store.next_due_ms(given[30][:2]) == given[31][0]
    store.close()


def test_a_scan_opens_nothing(tmp_path: Path) -> None:
    store = WheelStore(tmp_path, SMALL)
    store.open()
    given = frames(2_000, HOUR_MS)
    store.append(given, [], [], 2_000)
    store.sync()
    assert list(store.scan(START_KEY, FAR_MS)) == sorted(given)
    store.sync()
    assert names(tmp_path) == [f"{START_MS // 1000}.3600"]
    store.close()


def test_a_minute_that_comes_again_after_its_prune_keeps_its_file(tmp_path: Path) -> None:
    """A file that waits to be removed must not take a new one of its name along."""
    store = WheelStore(tmp_path, SMALL)
    store.open()
    given = frames(2_000, 60_000)
    store.append(given, [], [], 2_000)
    store.sync()
    assert read_all(store, START_MS + 60_000) == sorted(given)
    store.prune(Cursor((START_MS + HOUR_MS, 0), 2_000))
    store.read_due((0, -1), 0, 1)  # a clock that went back: nothing is near
    again = [(*frame[:1], 2_000 + frame[1], *frame[2:]) for frame in given]
    store.append(again, [], [], 4_000)
    store.sync()
    assert read_all(store, FAR_MS) == sorted(again)
    store.close()
    store = WheelStore(tmp_path, SMALL)
    assert store.open() == 4_000
    assert read_all(store, FAR_MS) == sorted(again)
    store.close()


def test_a_slot_is_told_from_a_wider_one_that_begins_with_it() -> None:
    assert len({seed_of(START_MS // 1000, width) for width in (1, 60, 3600)}) == 3


class FullDisk(Files):
    """Refuses every write once it is full."""

    full = False

    def write_at(self, path: str, position: int, data: bytes) -> None:
        if self.full:
            raise StoreError(f"can't write {path}")
        super().write_at(path, position, data)


def test_a_full_disk_holds_up_no_delivery(tmp_path: Path) -> None:
    files = FullDisk()
    store = WheelStore(tmp_path, SMALL, files)
    store.open()
    given = frames(3_000, HOUR_MS)
    for start in range(0, 3_000, 300):
        store.append(given[start : start + 300], [], [], start + 300)
        store.sync()
    store.read_due((0, -1), START_MS - HOUR_MS // 2, 10)  # the hour is opening
    files.full = True
    for _ in range(50):
        store.read_due((0, -1), START_MS - HOUR_MS // 2, 10)
    assert read_all(store, FAR_MS) == sorted(given)
    files.full = False
    store.close()
    store = WheelStore(tmp_path, SMALL)
    assert store.open() == 3_000
    assert read_all(store, FAR_MS) == sorted(given)
    store.close()
