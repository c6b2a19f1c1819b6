"""A wheel read by somebody else than its owner is what its owner reads."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from delayservice.core.cursor import Cursor
from delayservice.errors import SlotDamagedError, StoreError
from delayservice.store.base import NO_MARK, Frame, Mark
from delayservice.store.shards import find_shards
from delayservice.store.wheel import WheelOptions, WheelStore
from delayservice.store.wheel.near import read_blocks
from delayservice.store.wheel.reading import (
    EVERYTHING,
    Bounds,
    Damage,
    hours_of,
    load_state,
    read_hour,
)
from delayservice.store.wheel.slots import Slot

FAR_MS = 10**15
START_MS = 1_795_226_400_000  # an hour
HOUR_MS = 3_600_000
SMALL = WheelOptions(
    buffer_bytes_max=20_000, near_bytes_max=20_000, open_bytes_min=0, open_rows=40, handles_max=8
)


def a_frame(key_ms: int, offset: int) -> Frame:
    return (key_ms, offset, NO_MARK, b"payload %d" % offset * 3)


def shard_folder(tmp_path: Path) -> Path:
    return tmp_path / "wheel" / "0123456789abcdef01234567" / "3"


def read_all(folder: Path, bounds: Bounds = EVERYTHING) -> tuple[list[Frame], list[Damage]]:
    """Everything that a reader finds, in key order."""
    state = load_state(str(folder))
    assert state is not None
    frames: list[Frame] = []
    damages: list[Damage] = []
    for hour, entries in hours_of(state.entries, bounds).items():
        for found in read_hour(str(folder), hour, entries, bounds):
            if isinstance(found, Damage):
                damages.append(found)
            else:
                assert all(found.slot_ms[0] <= f[0] < found.slot_ms[1] for f in found.frames)
                frames += found.frames
    return sorted(frames), damages


def scan(store: WheelStore) -> list[Frame]:
    return list(store.scan((0, -1), FAR_MS))


def opened(folder: Path, options: WheelOptions = SMALL) -> WheelStore:
    folder.parent.mkdir(parents=True, exist_ok=True)
    store = WheelStore(folder, options)
    store.open()
    return store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shard_folder(tmp_path)


@pytest.fixture
def store(folder: Path) -> Iterator[WheelStore]:
    found = opened(folder)
    yield found
    found.abandon()


def three_hours(store: WheelStore, count: int = 900) -> list[Frame]:
    given = [a_frame(START_MS + offset * 12_007 % (3 * HOUR_MS), offset) for offset in range(count)]
    store.append(given, [], [], count)
    store.sync()
    return sorted(given)


def slot_files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "slots").glob("*/*"))


@pytest.mark.parametrize("seed", range(25))
def test_whatever_a_wheel_went_through_it_is_read_as_its_owner_reads_it(
    folder: Path, seed: int
) -> None:
    """Near and far slots, marks before and after a move, slots that are opening, restarts."""
    chance = random.Random(seed)
    store = opened(folder)
    offset, hand_ms = 0, START_MS
    unmarked: dict[int, int] = {}
    for _ in range(chance.randrange(4, 14)):
        frames = [
            a_frame(hand_ms + chance.choice([60_000, 2 * HOUR_MS, 9 * HOUR_MS]) * n // 40, at)
            for n, at in enumerate(range(offset, offset + 40))
        ]
        victims = chance.sample(sorted(unmarked), min(3, len(unmarked)))
        marks: list[Mark] = [(b"id", unmarked.pop(at), at, offset + 40) for at in victims]
        store.append(frames, [], marks, offset + 41)
        unmarked |= {frame[1]: frame[0] for frame in frames if chance.random() < 0.3}
        offset += 41
        hand_ms += chance.choice([0, 30_000, 1_000_000])
        store.read_due((hand_ms - 1_000, 0), hand_ms, 20)
        store.prune(Cursor((hand_ms - 1_000, 0), offset))
        unmarked = {at: key_ms for at, key_ms in unmarked.items() if key_ms > hand_ms}
        if chance.random() < 0.5:
            store.sync()
        if chance.random() < 0.2:
            store.close()
            store = opened(folder)
    store.sync()
    found, damages = read_all(folder)
    store.abandon()
    assert damages == []
    again = opened(folder)
    assert found == scan(again)
    again.abandon()


def test_the_way_of_a_slot_that_is_opening_is_really_taken(store: WheelStore, folder: Path) -> None:
    given = three_hours(store)
    store.append([], [], [(b"id", *given[500][:2], 950), (b"id", *given[0][:2], 951)], 952)
    store.sync()
    store.read_due((START_MS - HOUR_MS // 2, 0), START_MS - HOUR_MS // 2, 1)
    store.sync()
    state = load_state(str(folder))
    assert state is not None
    (opening,) = [entry for entry in state.entries if 0 < entry.moved < entry.size]
    data = next((folder / "slots").glob(f"*/{opening.second}.{opening.width}")).read_bytes()
    left = read_blocks(lambda at, size: data[at : at + size], Slot.of_entry(opening))
    assert min(block.position for block in left) == opening.moved
    expected = {frame[1]: frame for frame in given}
    for victim, mark in ((given[500], 950), (given[0], 951)):
        expected[victim[1]] = (*victim[:2], mark, victim[3])
    assert read_all(folder) == (sorted(expected.values()), [])


def test_a_store_that_is_open_is_read_up_to_its_horizon_and_left_alone(
    store: WheelStore, folder: Path
) -> None:
    given = three_hours(store)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    more = [a_frame(START_MS + n * 1_000, 900 + n) for n in range(400)]
    store.append(more, [], [], 1_300)
    torn = slot_files(folder)[0]
    with torn.open("ab") as file:
        file.write(b"torn")
    before[torn] = torn.stat().st_mtime_ns
    assert read_all(folder) == (given, [])
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path in before}
    assert after == before


def test_what_a_node_prunes_or_moves_after_the_index_was_read_is_no_damage(
    store: WheelStore, folder: Path
) -> None:
    given = three_hours(store)
    state = load_state(str(folder))
    assert state is not None
    hours = hours_of(state.entries, EVERYTHING)
    middle_ms = START_MS + HOUR_MS
    store.read_due((middle_ms - 1, 0), middle_ms + 1, 1)
    store.prune(Cursor((middle_ms, 0), 900))
    store.sync()
    assert not any(path.exists() for path in (folder / "slots").glob("2026-11-21T02/*"))
    found: list[Frame] = []
    for hour, entries in hours.items():
        for rows in read_hour(str(folder), hour, entries, EVERYTHING):
            assert not isinstance(rows, Damage), rows
            found += rows.frames
    assert sorted(found) == [frame for frame in given if frame[0] >= middle_ms]


def test_a_file_that_is_replaced_while_it_is_read_is_read_as_it_was(
    store: WheelStore, folder: Path
) -> None:
    given = three_hours(store)
    for _ in range(40):  # the first hour goes to files of minutes
        store.read_due((START_MS - HOUR_MS // 2, 0), START_MS - HOUR_MS // 2, 1)
    store.sync()
    state = load_state(str(folder))
    assert state is not None
    hour, entries = next(iter(hours_of(state.entries, EVERYTHING).items()))
    assert len(entries) > 50
    reading = read_hour(str(folder), hour, entries, EVERYTHING)
    first = next(reading)
    store.prune(Cursor((START_MS + 2 * HOUR_MS, 0), 900))
    store.sync()
    rows = [first, *reading]
    assert not [row for row in rows if isinstance(row, Damage)]
    frames = sorted(f for row in rows if not isinstance(row, Damage) for f in row.frames)
    assert frames == [frame for frame in given if frame[0] < START_MS + HOUR_MS]


def test_a_flipped_byte_costs_its_block_and_is_told_with_its_offsets(
    store: WheelStore, folder: Path
) -> None:
    given = three_hours(store)
    victim = slot_files(folder)[-1]
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(bytes(data))
    found, damages = read_all(folder)
    (damage,) = damages
    lost = sorted(set(given) - set(found))
    assert lost
    assert all(damage.start_ms <= frame[0] < damage.stop_ms for frame in lost)
    assert damage.stop_offset is not None
    assert all(damage.first_offset <= frame[1] < damage.stop_offset for frame in lost)
    assert "checksum" in damage.why
    with pytest.raises(SlotDamagedError):
        scan(opened_copy(folder))


def opened_copy(folder: Path) -> WheelStore:
    """The store as a node opens it, of a folder that another one has locked."""
    copy = folder.parent / "9"
    shutil.copytree(folder, copy)
    return opened(copy)


def test_a_broken_header_leaves_the_blocks_before_it(store: WheelStore, folder: Path) -> None:
    given = three_hours(store)
    store.append([a_frame(START_MS + 2 * HOUR_MS + 5, 901)], [], [], 902)
    store.sync()
    victim = slot_files(folder)[-1]
    data = bytearray(victim.read_bytes())
    data[-60] ^= 1  # in the header of the last block, which holds one short row
    victim.write_bytes(bytes(data))
    found, damages = read_all(folder)
    assert found == given
    assert [damage.why for damage in damages if "header" in damage.why]


def test_a_missing_file_and_a_short_one_are_damage(store: WheelStore, folder: Path) -> None:
    given = three_hours(store)
    first, second, third = slot_files(folder)[0], *slot_files(folder)[-2:]
    first.unlink()
    third.write_bytes(third.read_bytes()[:100])
    found, damages = read_all(folder)
    assert len(damages) == 2
    assert second.exists()
    hour_ms = {START_MS, START_MS + 2 * HOUR_MS}
    assert {damage.start_ms // HOUR_MS * HOUR_MS for damage in damages} <= hour_ms
    kept = {f for f in given if not any(d.start_ms <= f[0] < d.stop_ms for d in damages)}
    assert kept <= set(found) < set(given)


def test_a_slot_that_the_node_itself_found_damaged_is_told(folder: Path) -> None:
    store = opened(folder)
    three_hours(store)
    store.close()
    slot_files(folder)[-1].unlink()
    store = opened(folder)
    with pytest.raises(SlotDamagedError):
        scan(store)
    store.close()
    _, damages = read_all(folder)
    assert ["has not read it again" in damage.why for damage in damages] == [True]


def test_a_time_range_opens_no_other_file_and_reads_no_other_block(folder: Path) -> None:
    """Other files are gone, and the only other block of the hour is damaged: nobody notices."""
    store = opened(folder, WheelOptions(hours_ahead_ms=-FAR_MS, minutes_ahead_ms=-FAR_MS))
    given = []
    for n in range(3):  # one flush each: a block in an hour's file
        frames = [
            a_frame(START_MS + n * HOUR_MS // 3 + at * 1_000, 100 * n + at) for at in range(100)
        ]
        given += frames
        store.append(frames, [], [], 100 * n + 100)
        store.sync()
    other = a_frame(START_MS + HOUR_MS, 400)
    store.append([other], [], [], 401)
    store.sync()
    store.abandon()
    here, gone = slot_files(folder)
    gone.unlink()
    data = bytearray(here.read_bytes())
    data[60] ^= 1
    here.write_bytes(bytes(data))
    bounds = Bounds(START_MS + HOUR_MS // 3, START_MS + HOUR_MS // 3 + 50_000)
    assert read_all(folder, bounds) == (given[100:150], [])
    _, damages = read_all(folder)
    assert len(damages) == 2


def test_rows_that_occur_twice_are_one_record(store: WheelStore, folder: Path) -> None:
    given = three_hours(store)
    store.append(given[100:300], [], [], 900)
    store.sync()
    assert read_all(folder) == (given, [])


def test_a_folder_without_a_horizon_can_not_be_trusted(store: WheelStore, folder: Path) -> None:
    three_hours(store)
    (folder / "horizon").unlink()
    assert load_state(str(folder)) is None


def test_shards_are_found_from_a_state_folder_a_wheel_or_a_shard(
    store: WheelStore, folder: Path
) -> None:
    three_hours(store)
    (folder.parent / "3.removed").mkdir()
    expected = ("0123456789abcdef01234567", 3)
    for root in (folder, folder.parents[1], folder.parents[2]):
        assert [shard[1:] for shard in find_shards(root)] == [expected]
    with pytest.raises(StoreError, match="holds no shard"):
        find_shards(folder / "slots")


def test_a_folder_of_another_kind_is_refused(store: WheelStore, folder: Path) -> None:
    three_hours(store)
    (folder / "VERSION").write_text("rocksdb 2\n")
    with pytest.raises(StoreError, match="export"):
        load_state(str(folder))
