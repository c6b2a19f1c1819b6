"""Many shards in one wheel: few files, one sync, few reads, little memory."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from structlog.testing import capture_logs

from delayservice.base.errors import SlotDamagedError, StoreError
from delayservice.contract.entry import OFFSET_MAX
from delayservice.engine.cursor import NO_GROUP, START_KEY, Cursor
from delayservice.store.base import NO_MARK, Frame, Store
from delayservice.store.files import Files
from delayservice.store.offline import each_store, look
from delayservice.store.wheel import Wheel, WheelOptions
from delayservice.store.wheel.block import Block
from delayservice.store.wheel.window import ROW_BYTES
from tests.crash.crash_disk import LateExecutor
from tests.shards import FAR_MS, SLOT_MS, START_MS, check, everything, filled, opened, rows_of
from tests.unit.stored_folders import a_frame
from tests.wheels import TOPIC, slot_files

MANY = 1_000
OPTIONS = WheelOptions(slot_ms=SLOT_MS)


class CountingFiles(Files):
    def __init__(self) -> None:
        super().__init__()
        self.synced: list[str] = []
        self.read: list[tuple[int, int]] = []

    def read_at(self, path: str, position: int, size: int) -> bytes:
        if "/slots/" in path:
            self.read.append((position, size))
        return super().read_at(path, position, size)

    def twin(self) -> CountingFiles:
        twin = CountingFiles()
        twin.synced = self.synced
        return twin

    def sync_file(self, path: str) -> None:
        self.synced.append(path)


def test_a_crash_after_a_shard_has_gone_leaves_the_ids_of_the_others(tmp_path: Path) -> None:
    wheel = Wheel(tmp_path, OPTIONS, executor=LateExecutor())
    stores = filled(wheel, 2)
    stores[0].sync()
    stores[1].append([(START_MS, 13, NO_MARK, b"")], [], [], 14)
    stores[1].close()  # begins a sync
    wheel.remove(TOPIC, 1)
    wheel.abandon()
    again = Wheel(tmp_path, OPTIONS)
    check(opened(again, 0, 13), 0)
    again.close()


def test_a_thousand_shards_have_a_file_for_each_slot_and_one_horizon(tmp_path: Path) -> None:
    files = CountingFiles()
    wheel = Wheel(tmp_path, OPTIONS, files)
    stores = filled(wheel, MANY, with_ids=0)
    assert stores[0].sync() == 13
    assert len(slot_files(tmp_path)) == 6
    assert len(files.synced) == 2 + 6 + 1  # VERSION and an empty horizon, the slots, the horizon
    assert all(store.stats().durable_offset == 13 for store in stores)
    stores[7].sync()
    assert len(files.synced) == 9  # nothing has changed
    wheel.close()
    again = Wheel(tmp_path, OPTIONS)
    for partition in range(MANY):
        store = opened(again, partition, 13)
        assert store.label == b"label %d" % partition
        assert everything(store) == sorted(rows_of(partition))
        assert store.stats().pending == 12
    again.close()


def test_a_file_goes_when_every_shard_in_it_has_passed_it(tmp_path: Path) -> None:
    wheel = Wheel(tmp_path, OPTIONS)
    stores = filled(wheel, 3, with_ids=0)
    stores[0].sync()
    end = Cursor((START_MS + SLOT_MS, 0), 13)
    first = slot_files(tmp_path)[0]
    for store in stores[:-1]:
        store.prune(end)
        assert first.exists()
    stores[-1].prune(Cursor((START_MS + SLOT_MS - 1, 0), 13))
    assert first.exists()
    stores[-1].prune(end)
    assert not first.exists()
    assert len(slot_files(tmp_path)) == 5
    wheel.close()


def test_after_a_crash_only_a_file_that_is_still_needed_is_missed(tmp_path: Path) -> None:
    wheel = Wheel(tmp_path, OPTIONS)
    stores = filled(wheel, 3, with_ids=0)
    stores[0].sync()
    passed = Cursor((START_MS + 2 * SLOT_MS, 0), 13)
    for store in stores:
        store.prune(passed)
    wheel.abandon()
    slot_files(tmp_path)[0].unlink()  # the first one that K has not passed

    with capture_logs() as logs:
        again = Wheel(tmp_path, OPTIONS)
        store = opened(again, 0, 13)
        store.prune(passed)
    assert [(one["log_level"], one["event"]) for one in logs] == [("info", "slots_missing")]
    assert logs[0]["slots"] == 3
    with pytest.raises(SlotDamagedError) as damage:
        store.read_due(passed.key, FAR_MS, 50)
    assert damage.value.start_ms == START_MS + 2 * SLOT_MS
    again.close()


def test_marks_are_no_records_among_those_that_have_passed(tmp_path: Path) -> None:
    store = opened(Wheel(tmp_path, OPTIONS), 0)
    keys = [(START_MS + number, number) for number in range(10)]
    named = [(b"%d" % offset, key_ms, offset, NO_GROUP) for key_ms, offset in keys]
    store.append([(*key, NO_MARK, b"payload") for key in keys], named, [], 10)
    store.append([], [], [(*name[:3], 10 + name[2]) for name in named[:5]], 15)
    assert len(store.read_due(START_KEY, START_MS + 6, 100)) == 7
    store.prune(Cursor(keys[6], 15))
    assert store.stats().pending == 3
    store.close()


def test_another_slot_width_starts_the_wheel_over(tmp_path: Path) -> None:
    wheel = Wheel(tmp_path, OPTIONS)
    filled(wheel, 2, with_ids=0)
    wheel.close()
    wheel = Wheel(tmp_path, WheelOptions(slot_ms=SLOT_MS * 2))
    opened(wheel, 0, 0)
    assert slot_files(tmp_path) == []
    wheel.close()


def test_a_giant_slot_is_read_within_the_bound_of_memory(tmp_path: Path) -> None:
    # 20,000 records of 1 kB for each of three shards in one slot: 24 times what may be held.
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
            cached = wheel.slots._reader.kept_bytes + wheel.windows.cost
            most = max(most, wheel.slots.buffer_bytes + cached)
    assert found == given
    assert len(slot_files(tmp_path)) == 1
    assert most <= options.buffer_bytes_max + bound + 500 * (1_000 + ROW_BYTES)
    wheel.close()


def read_past_damage(store: Store) -> list[Frame]:
    """Return all rows but the damaged ones, which a digest or a person leaves out as well."""
    found: list[Frame] = []
    scanner, after, end = store.scanner(), START_KEY, (FAR_MS, OFFSET_MAX)
    while after < end:
        rows, after, _ = scanner.read_on(after, end, 300)
        found += rows
    return found


def test_a_lost_giant_slot_is_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayservice.store.wheel.wheel.REREAD_ROWS", 100)
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
            start_ms, stop_ms = damage.start_ms, damage.stop_ms
            again = [f for f in rows if start_ms <= f[0] < stop_ms]
            assert len(again) <= 200
            store.rebuild(start_ms, stop_ms, again)
            assert read_past_damage(store) == [f for f in sorted(rows) if f[0] < stop_ms]
    assert found == sorted(rows)
    assert parts >= 8
    assert store.stats().pending == 1_000
    wheel.close()


def test_a_rebuild_doubles_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Neither what was read again before, nor what was appended since the damage was found.
    monkeypatch.setattr("delayservice.store.wheel.wheel.REREAD_ROWS", 100)
    wheel = Wheel(tmp_path, OPTIONS)
    store = opened(wheel, 0)
    rows = rows_of(0, 1_100, slots=1)
    lost, later = [f for f in rows if f[1] < 1_000], [f for f in rows if f[1] >= 1_000]
    store.append(lost, [], [], 1_000)
    store.sync()
    slot_files(tmp_path)[0].write_bytes(b"")
    with pytest.raises(SlotDamagedError) as first:
        store.read_due(START_KEY, FAR_MS, 300)
    damage = first.value
    part = [f for f in lost if damage.start_ms <= f[0] < damage.stop_ms]
    assert 0 < len(part) < len(lost)
    store.rebuild(damage.start_ms, damage.stop_ms, part)
    store.append(later, [], [], 1_100)
    store.rebuild(START_MS, START_MS + SLOT_MS, rows)
    assert store.stats().pending == 1_100
    assert everything(store) == sorted(rows)
    wheel.close()


def test_sparse_shards_of_a_slot_are_read_together(tmp_path: Path) -> None:
    # A record of each of 1,000 shards: two blocks, and not one for each.
    wheel = Wheel(tmp_path, OPTIONS)
    for partition in range(MANY):
        opened(wheel, partition).append([one_row(partition)], [], [], 1)
    wheel.close()
    files = CountingFiles()
    wheel = Wheel(tmp_path, OPTIONS, files)
    for partition in range(MANY):
        assert everything(opened(wheel, partition)) == [one_row(partition)]
    assert 3 <= len(files.read) <= 8
    wheel.close()


def one_row(partition: int) -> Frame:
    return (START_MS + partition, 0, NO_MARK, b"%90d" % partition)


def test_many_rows_of_a_shard_have_blocks_of_their_own(tmp_path: Path) -> None:
    # Who reads a sparse shard does not read the rows of a busy one beside it.
    wheel = Wheel(tmp_path, OPTIONS)
    rows = [rows_of(0, 3, 1), rows_of(1, 5_000, 1), rows_of(2, 3, 1), rows_of(3, 5_000, 1)]
    for partition, given in enumerate(rows):
        opened(wheel, partition).append(given, [], [], len(given))
    wheel.close()
    files = CountingFiles()
    wheel = Wheel(tmp_path, OPTIONS, files)
    assert everything(opened(wheel, 2)) == sorted(rows[2])
    assert sum(size for _, size in files.read) < 50_000
    assert everything(opened(wheel, 0)) == sorted(rows[0])
    assert everything(opened(wheel, 3)) == sorted(rows[3])
    assert everything(opened(wheel, 1)) == sorted(rows[1])
    wheel.close()


def test_shared_blocks_take_no_more_memory_than_their_part_of_the_bound(tmp_path: Path) -> None:
    # Of 40 blocks, two can be kept; whatever is not is read again.
    options = WheelOptions(slot_ms=SLOT_MS, near_bytes_max=8 * 140_000)
    wheel = Wheel(tmp_path, options)
    payload = bytes(20_000)
    for partition in range(120):
        row = (START_MS + partition, 0, NO_MARK, payload)
        opened(wheel, partition).append([row], [], [], 1)
    wheel.close()
    wheel = Wheel(tmp_path, options)
    stores = [opened(wheel, partition) for partition in range(120)]
    for partition in Random(1).sample(range(120), 120):
        found = everything(stores[partition])
        assert found == [(START_MS + partition, 0, NO_MARK, payload)]
        kept = wheel.slots._reader.kept_bytes
        assert kept <= 140_000
    assert kept > 60_000
    wheel.close()


def test_the_windows_of_many_shards_are_counted_as_they_come_grow_and_go(tmp_path: Path) -> None:
    wheel = Wheel(tmp_path, OPTIONS)
    stores = filled(wheel, 50, with_ids=0)
    assert wheel.windows.cost == 0
    for store in stores:
        store.read_due(START_KEY, START_MS + SLOT_MS, 50)
    before = wheel.windows.cost
    assert before > 0
    more = [(START_MS + 5, 13 + n, NO_MARK, bytes(100)) for n in range(7)]
    stores[0].append(more, [], [], 20)
    stores[0].read_due(START_KEY, START_MS + SLOT_MS, 50)
    assert wheel.windows.cost == before + 7 * (100 + ROW_BYTES)
    for store in stores:
        store.read_due((START_MS + 6 * SLOT_MS, 0), FAR_MS, 50)
    assert wheel.windows.cost == 0
    wheel.close()


def test_verify_reads_each_header_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = Wheel(tmp_path, OPTIONS)
    for partition in range(50):
        rows = [a_frame(key_ms, offset) for key_ms, offset, *_ in rows_of(partition)]
        opened(wheel, partition).append(rows, [], [], 12)
    wheel.close()
    positions: list[int] = []
    parse = Block.__init__

    def noted(block: Block, data: bytes, start_ms: int, position: int) -> None:
        positions.append(start_ms + position)
        parse(block, data, start_ms, position)

    monkeypatch.setattr(Block, "__init__", noted)
    found = [look(store) for _, store in each_store(tmp_path) if not isinstance(store, StoreError)]
    assert [(facts.records, facts.damages) for facts in found] == [(12, [])] * 50
    assert len(positions) == len(set(positions)) >= 6


def test_a_file_that_is_begun_anew_after_damage_is_read_as_it_is(tmp_path: Path) -> None:
    # Nothing that was kept in memory of the damaged one counts.
    wheel = Wheel(tmp_path, OPTIONS)
    stores = filled(wheel, 3, with_ids=0)
    stores[0].sync()
    victim = slot_files(tmp_path)[0]
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    again = [[(k, o, m, payload * 2) for k, o, m, payload in rows_of(n)] for n in range(3)]
    for rows, store in zip(again, stores, strict=True):
        with pytest.raises(SlotDamagedError) as raised:
            list(store.scanner().frames(START_KEY, FAR_MS))
        damage = raised.value
        inside = [row for row in rows if damage.start_ms <= row[0] < damage.stop_ms]
        store.rebuild(damage.start_ms, damage.stop_ms, inside)
    stores[0].sync()
    for rows, store in zip(again, stores, strict=True):
        found = list(store.scanner().frames(START_KEY, START_MS + SLOT_MS - 1))
        assert found == sorted(row for row in rows if row[0] < START_MS + SLOT_MS)
    wheel.close()


def test_rows_of_one_shard_are_replaced_beside_those_of_others(tmp_path: Path) -> None:
    wheel = Wheel(tmp_path, OPTIONS)
    stores = filled(wheel, 3, with_ids=0)
    stores[0].sync()
    again = [(key, offset, mark, b"again") for key, offset, mark, _ in rows_of(1)]
    stores[1].rebuild(START_MS, START_MS + 6 * SLOT_MS, again)
    wheel.close()
    wheel = Wheel(tmp_path, OPTIONS)
    for partition, rows in enumerate((rows_of(0), again, rows_of(2))):
        store = opened(wheel, partition)
        assert everything(store) == sorted(rows)
        assert store.stats().pending == len(rows)
    wheel.close()
