"""Many shards in one wheel: few files, one sync, and each goes and comes without the others."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from delayservice.core.cursor import START_KEY, Cursor
from delayservice.errors import SlotDamagedError, StoreError
from delayservice.store.base import NO_MARK, Frame
from delayservice.store.files import Files
from delayservice.store.wheel import Wheel, WheelOptions, WheelStore
from delayservice.store.wheel.near import ROW_BYTES
from tests.wheels import TOPIC, slot_files

FAR_MS = 10**15
START_MS = 1_800_000_000_000
SLOT_MS = 10_000
MANY = 1_000
OPTIONS = WheelOptions(slot_ms=SLOT_MS)


class CountingFiles(Files):
    """Counts what a sync costs."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[str] = []

    def twin(self) -> CountingFiles:
        twin = CountingFiles()
        twin.synced = self.synced
        return twin

    def sync_file(self, path: str) -> None:
        self.synced.append(path)


def rows_of(partition: int, count: int = 12, slots: int = 6) -> list[Frame]:
    rng = Random(partition)
    keys = [START_MS + rng.randrange(slots * SLOT_MS) for _ in range(count)]
    return [(key, n, NO_MARK, b"%d of %d" % (n, partition)) for n, key in enumerate(keys)]


def opened(wheel: Wheel, partition: int) -> WheelStore:
    store = wheel.shard(TOPIC, partition)
    store.open()
    return store


def filled(wheel: Wheel, partitions: int) -> list[WheelStore]:
    stores = [opened(wheel, partition) for partition in range(partitions)]
    for partition, store in enumerate(stores):
        rows = rows_of(partition)
        store.set_label(b"label %d" % partition)
        store.append(rows, [], [], len(rows))
    return stores


def everything(store: WheelStore) -> list[Frame]:
    found: list[Frame] = []
    while part := store.read_due(found[-1][:2] if found else START_KEY, FAR_MS, 50):
        found += part
    return found


def test_a_thousand_shards_have_a_file_for_each_slot_and_one_horizon(tmp_path: Path) -> None:
    files = CountingFiles()
    wheel = Wheel(tmp_path, OPTIONS, files)
    stores = filled(wheel, MANY)
    assert stores[0].sync() == 12
    assert len(slot_files(tmp_path)) == 6
    assert len(files.synced) == 2 + 6 + 1  # VERSION and an empty horizon, the slots, the horizon
    assert all(store.stats().durable_offset == 12 for store in stores)
    stores[7].sync()
    assert len(files.synced) == 9  # nothing has changed
    wheel.close()
    again = Wheel(tmp_path, OPTIONS)
    for partition in range(MANY):
        store = again.shard(TOPIC, partition)
        assert store.open() == 12
        assert store.label == b"label %d" % partition
        assert everything(store) == sorted(rows_of(partition))
        assert store.stats().pending == 12
    again.close()


def test_a_shard_that_leaves_and_returns_finds_nothing_of_its_former_life(tmp_path: Path) -> None:
    wheel = Wheel(tmp_path, OPTIONS)
    stores = filled(wheel, 3)
    stores[0].sync()
    stores[1].close()
    wheel.remove(TOPIC, 1)
    stores[0].sync()
    stores[1] = opened(wheel, 1)
    assert stores[1].label == b""
    assert everything(stores[1]) == []
    again = [(key, offset, mark, b"again") for key, offset, mark, _ in rows_of(1, 5)]
    stores[1].append(again, [], [], 5)
    wheel.close()
    wheel = Wheel(tmp_path, OPTIONS)
    for partition, rows in enumerate((rows_of(0), again, rows_of(2))):
        store = opened(wheel, partition)
        assert everything(store) == sorted(rows)
    wheel.close()


def test_a_shard_that_is_closed_is_as_it_was_when_it_is_opened_again(tmp_path: Path) -> None:
    wheel = Wheel(tmp_path, OPTIONS)
    stores = filled(wheel, 2)
    stores[1].close()
    store = wheel.shard(TOPIC, 1)
    assert store.open() == 12
    assert everything(store) == sorted(rows_of(1))
    with pytest.raises(StoreError, match="in use by this process"):
        wheel.shard(TOPIC, 1).open()
    wheel.close()


def test_a_store_that_was_reset_does_not_come_back_after_a_crash(tmp_path: Path) -> None:
    wheel = Wheel(tmp_path, OPTIONS)
    stores = filled(wheel, 2)
    stores[0].sync()
    stores[0].reset()
    wheel.abandon()
    wheel = Wheel(tmp_path, OPTIONS)
    store = wheel.shard(TOPIC, 0)
    assert store.open() == 0
    assert everything(store) == []
    assert everything(opened(wheel, 1)) == sorted(rows_of(1))
    wheel.close()


def test_a_file_goes_when_every_shard_in_it_has_passed_it(tmp_path: Path) -> None:
    wheel = Wheel(tmp_path, OPTIONS)
    stores = filled(wheel, 3)
    stores[0].sync()
    end = Cursor((START_MS + SLOT_MS, 0), 12)
    first = slot_files(tmp_path)[0]
    for store in stores[:-1]:
        store.prune(end)
        assert first.exists()
    stores[-1].prune(Cursor((START_MS + SLOT_MS - 1, 0), 12))
    assert first.exists()
    stores[-1].prune(end)
    assert not first.exists()
    assert len(slot_files(tmp_path)) == 5
    wheel.close()


def test_a_shard_that_no_lane_opens_keeps_no_files_for_ever(tmp_path: Path) -> None:
    wheel = Wheel(tmp_path, OPTIONS)
    filled(wheel, 2)
    wheel.close()
    wheel = Wheel(tmp_path, WheelOptions(slot_ms=SLOT_MS, unused_s=0.0))
    store = opened(wheel, 0)
    store.append([], [], [], 13)
    store.sync()
    store.prune(Cursor((START_MS + 6 * SLOT_MS, 0), 13))
    assert slot_files(tmp_path) == []
    assert wheel.shard(TOPIC, 1).open() == 0
    wheel.close()


def test_one_damaged_file_is_read_again_by_each_of_its_shards(tmp_path: Path) -> None:
    wheel = Wheel(tmp_path, OPTIONS)
    filled(wheel, 20)
    wheel.close()
    victim = slot_files(tmp_path)[2]
    data = bytearray(victim.read_bytes())
    data[60] ^= 1
    victim.write_bytes(data)
    wheel = Wheel(tmp_path, OPTIONS)
    stores = [opened(wheel, partition) for partition in range(20)]
    spans = set()
    for partition, store in enumerate(stores):
        rows = rows_of(partition)
        inside = [f for f in rows if 2 * SLOT_MS <= f[0] - START_MS < 3 * SLOT_MS]
        if not inside:
            assert everything(store) == sorted(rows)
            continue
        with pytest.raises(SlotDamagedError) as raised:
            everything(store)
        damage = raised.value
        spans.add((damage.start_ms, damage.stop_ms))
        assert damage.first_offset == min(f[1] for f in inside)
        assert damage.stop_offset == max(f[1] for f in inside) + 1
        store.rebuild(damage.start_ms, damage.stop_ms, inside)
        assert everything(store) == sorted(rows)
        assert store.stats().pending == len(rows)
    assert spans == {(START_MS + 2 * SLOT_MS, START_MS + 3 * SLOT_MS)}
    assert len(list((tmp_path / "quarantine").iterdir())) == 1
    wheel.close()


def test_another_slot_width_starts_the_wheel_over(tmp_path: Path) -> None:
    wheel = Wheel(tmp_path, OPTIONS)
    filled(wheel, 2)
    wheel.close()
    wheel = Wheel(tmp_path, WheelOptions(slot_ms=SLOT_MS * 2))
    assert wheel.shard(TOPIC, 0).open() == 0
    assert slot_files(tmp_path) == []
    wheel.close()


def test_a_giant_slot_is_read_within_the_bound_of_memory(tmp_path: Path) -> None:
    """20,000 records of 1 kB for each of three shards in one slot: 24 times what may be held."""
    bound = 3 << 20
    options = WheelOptions(slot_ms=SLOT_MS, buffer_bytes_max=1 << 20, near_bytes_max=bound)
    wheel = Wheel(tmp_path, options)
    stores = [opened(wheel, partition) for partition in range(3)]
    payload = bytes(1_000)
    given: list[list[Frame]] = []
    for number, store in enumerate(stores):
        rng = Random(number)
        rows = [(START_MS + rng.randrange(SLOT_MS), n, NO_MARK, payload) for n in range(20_000)]
        for start in range(0, len(rows), 500):
            store.append(rows[start : start + 500], [], [], start + 500)
        given.append(sorted(rows))
    most = 0
    after = [START_KEY] * 3
    found: list[list[Frame]] = [[], [], []]
    for _ in range(100):
        for number, store in enumerate(stores):
            rows = store.read_due(after[number], FAR_MS, 400)
            found[number] += rows
            after[number] = rows[-1][:2] if rows else after[number]
            most = max(most, wheel.memory_bytes)
    assert found == given
    assert len(slot_files(tmp_path)) == 1
    assert most <= options.buffer_bytes_max + bound + 500 * (1_000 + ROW_BYTES)
    wheel.close()


def test_what_is_lost_of_a_giant_slot_is_read_again_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayservice.store.wheel.store.REREAD_ROWS", 100)
    wheel = Wheel(tmp_path, OPTIONS)
    store = opened(wheel, 0)
    rows = rows_of(0, 1_000, slots=1)
    store.append(rows, [], [], 1_000)
    store.sync()
    slot_files(tmp_path)[0].write_bytes(b"")
    found: list[Frame] = []
    parts = 0
    while len(found) < len(rows):
        try:
            found += store.read_due(found[-1][:2] if found else START_KEY, FAR_MS, 300)
        except SlotDamagedError as damage:
            parts += 1
            again = [f for f in rows if damage.start_ms <= f[0] < damage.stop_ms]
            assert len(again) <= 200
            store.rebuild(damage.start_ms, damage.stop_ms, again)
    assert found == sorted(rows)
    assert parts >= 8
    assert store.stats().pending == 1_000
    wheel.close()
