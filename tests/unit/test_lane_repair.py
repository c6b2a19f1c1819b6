"""A repair reads a range again from the log, in small steps, and forgets nothing that it can't."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from delayservice.base.errors import KafkaEdgeError
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import Headers, PolledRecord
from delayservice.engine.cursor import Cursor, Frame
from delayservice.engine.ports import Bounds, Place, PolledBatch
from delayservice.slices import repair
from delayservice.slices.lane import Lane
from delayservice.store.base import Store
from delayservice.store.memory import MemoryStore
from delayservice.store.wheel import WheelOptions
from tests.rocks import LoneRocks
from tests.unit.lanes import TOPIC, QuietSource, lane_of, routes_of
from tests.wheels import LoneStore, slot_files

HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS
WINDOW_MS = 6 * HOUR_MS
RECORDS = 60
RUN = 7


class Log(QuietSource):
    """A log of records that are due in the next three hours; each tenth bears one of two ids."""

    def __init__(self) -> None:
        self.start = 0
        self.end = RECORDS
        self.like: dict[int, int] = {}
        """Offsets whose records are as those of other offsets."""
        self.scanned: list[tuple[int, int]] = []

    def bounds(self, _place: Place) -> Bounds:
        return Bounds(self.start, self.end)

    def row(self, offset: int) -> PolledRecord:
        number = self.like.get(offset, offset)
        headers: Headers = [
            ("delay-after", b"%d" % (number * 3 * HOUR_MS // RECORDS)),
            ("delay-target-topic", b"orders"),
        ]
        if number % 10 == 0:
            headers.append(("delay-id", b"id %d" % (number % 20)))
        return (offset, START_MS, None, b"value %d" % number, headers)

    def run(self, start: int, stop: int) -> PolledBatch:
        return PolledBatch(
            (TOPIC, 0), start, [self.row(offset) for offset in range(start, stop)], stop
        )

    def scan(self, _place: Place, start: int, stop: int) -> Iterator[PolledBatch]:
        assert start >= self.start
        self.scanned.append((start, stop))
        for at in range(start, stop, RUN):
            yield self.run(at, min(at + RUN, stop))


@pytest.fixture(params=["memory", "wheel", "rocksdb"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    makers: dict[str, Callable[[], Store]] = {
        "memory": MemoryStore,
        "wheel": lambda: LoneStore(tmp_path),
        "rocksdb": lambda: LoneRocks(tmp_path),
    }
    return makers[request.param]


@pytest.fixture
def log() -> Log:
    return Log()


def opened(store: Store, log: Log) -> Lane:
    lane = lane_of(store, log, routes_of(WINDOW_MS, 1_000))
    lane.adopt(Contracts([(0, Contract(roll_window_ms=WINDOW_MS))]))
    lane.follow(Cursor())
    return lane


def filled(store: Store, log: Log) -> Lane:
    lane = opened(store, log)
    lane.ingest(log.run(0, RECORDS))
    lane.store.sync()
    return lane


@pytest.fixture
def lane(make_store: Callable[[], Store], log: Log) -> Iterator[Lane]:
    lane = filled(make_store(), log)
    yield lane
    lane.close()


def held(lane: Lane) -> list[Frame]:
    return list(lane.store.scanner().frames((0, 0), START_MS * 2))


def lose(lane: Lane, start_ms: int, stop_ms: int) -> None:
    """The store forgets a range, and does not know."""
    lane.store.rebuild(start_ms, stop_ms, [])


def test_a_lost_range_is_there_again_with_its_marks(lane: Lane, log: Log) -> None:
    before = held(lane)
    assert sum(frame[2] >= 0 for frame in before) == 4
    lose(lane, START_MS + HOUR_MS, START_MS + 2 * HOUR_MS)
    assert len(held(lane)) == RECORDS * 2 // 3
    steps = list(
        lane.repairing.repair(START_MS + HOUR_MS + 60_000, START_MS + HOUR_MS + 120_000, 0)
    )
    assert held(lane) == before
    assert steps[-1] == RECORDS // 3
    assert len(steps) > RECORDS // RUN
    assert log.scanned == [(0, RECORDS)]


def test_what_the_log_no_longer_has_is_kept(lane: Lane, log: Log) -> None:
    before = held(lane)
    log.start = 30  # in the middle of the second hour
    assert (
        list(lane.repairing.repair(START_MS + HOUR_MS, START_MS + 2 * HOUR_MS, 0))[-1]
        == RECORDS // 3
    )
    assert held(lane) == before


def test_what_is_stored_while_it_is_read_is_kept(lane: Lane, log: Log) -> None:
    before = held(lane)
    steps = lane.repairing.repair(START_MS, START_MS + 3 * HOUR_MS, 0)
    next(steps)
    log.like = {RECORDS: 30}
    log.end = RECORDS + 1
    lane.ingest(log.run(RECORDS, RECORDS + 1))
    list(steps)
    found = held(lane)
    assert len(found) == RECORDS + 1
    assert {frame[1] for frame in found} == {frame[1] for frame in before} | {RECORDS}
    assert max(frame[2] for frame in found) == RECORDS  # it bears the id of a record before it


def test_what_k_has_passed_is_not_brought_back(lane: Lane) -> None:
    lane.follow(Cursor((START_MS + 2 * HOUR_MS, 0), RECORDS))
    lose(lane, START_MS, START_MS + 3 * HOUR_MS)
    list(lane.repairing.repair(START_MS, START_MS + 3 * HOUR_MS, 0))
    assert min(frame[0] for frame in held(lane)) == START_MS + 2 * HOUR_MS


def test_a_whole_copy_is_read_again_from_the_log(lane: Lane, log: Log) -> None:
    before = held(lane)
    lose(lane, START_MS + HOUR_MS, START_MS + 2 * HOUR_MS)
    list(lane.start_over())
    assert held(lane) == []
    assert lane.shard.wanted == 0
    lane.ingest(log.run(0, RECORDS))
    assert held(lane) == before


@pytest.mark.parametrize(
    ("key_ms", "is_kept"), [(START_MS, True), (START_MS + 2 * HOUR_MS, False)], ids=["last", "past"]
)
def test_a_whole_copy_that_may_hold_the_last_of_a_record_is_kept(
    lane: Lane, log: Log, key_ms: int, *, is_kept: bool
) -> None:
    """The log starts in the middle of the second hour; records that K has passed are no reason."""
    lane.follow(Cursor((key_ms, 0), RECORDS))
    log.start = 30
    before = held(lane)
    if is_kept:
        with pytest.raises(KafkaEdgeError, match="below offset 30"):
            list(lane.start_over())
        assert held(lane) == before
    else:
        list(lane.start_over())
        assert (held(lane), lane.shard.wanted) == ([], 30)


def test_an_owners_copy_is_never_started_over(lane: Lane, log: Log) -> None:
    steps = lane.start_over()
    next(steps)
    lane.take_over(Cursor(), log.bounds(lane.place))
    before = held(lane)
    with pytest.raises(KafkaEdgeError, match="this node delivers"):
        list(steps)
    assert (held(lane), lane.shard.owned) == (before, True)


def test_a_mark_that_is_set_meanwhile_on_what_the_log_no_longer_has_is_kept(
    lane: Lane, log: Log
) -> None:
    log.start = 55
    steps = lane.repairing.repair(START_MS + 2 * HOUR_MS, START_MS + 3 * HOUR_MS, 0)
    next(steps)
    log.like = {RECORDS: 40}
    log.end = RECORDS + 1
    lane.ingest(log.run(RECORDS, RECORDS + 1))
    list(steps)
    assert {frame[1]: frame[2] for frame in held(lane)}[40] == RECORDS


@pytest.mark.parametrize("start", [0, 30])
def test_a_range_that_is_too_much_for_memory_is_read_in_parts(
    lane: Lane, log: Log, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = held(lane)
    frames_max = RECORDS // 6
    monkeypatch.setattr(repair, "_BYTES_MAX", frames_max * (repair._FRAME_BYTES + 100))
    most = 0
    frames = repair.SlotRebuilder.frames

    def counted(reading: repair.SlotRebuilder) -> list[Frame]:
        nonlocal most
        found = frames(reading)
        most = max(most, len(found))
        return found

    monkeypatch.setattr(repair.SlotRebuilder, "frames", counted)
    if start == 0:
        lose(lane, START_MS, START_MS + 3 * HOUR_MS)
    log.start = start
    steps = list(lane.repairing.repair(START_MS, START_MS + 3 * HOUR_MS, 0))
    assert held(lane) == before
    assert steps[-1] == RECORDS
    assert 0 < most <= 2 * frames_max


def test_a_damaged_slot_that_is_too_much_for_memory_is_read_in_parts(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = WheelOptions(slot_ms=HOUR_MS)
    lane = filled(LoneStore(tmp_path, options), log)
    before = held(lane)
    lane.close()
    slot_files(tmp_path)[1].unlink()
    monkeypatch.setattr(repair, "_BYTES_MAX", RECORDS // 6 * (repair._FRAME_BYTES + 100))
    lane = opened(LoneStore(tmp_path, options), log)
    assert list(lane.repairing.scan((0, 0), START_MS * 2)) == before
    assert len(log.scanned) > 1
    lane.close()


def test_lost_slots_in_a_row_are_read_again_at_once(tmp_path: Path, log: Log) -> None:
    lane = filled(LoneStore(tmp_path), log)
    before = held(lane)
    lane.close()
    files = slot_files(tmp_path)
    for path in files:
        path.unlink()
    lane = opened(LoneStore(tmp_path), log)
    assert list(lane.repairing.scan((0, 0), START_MS * 2)) == before
    assert len(files) > len(log.scanned) == 1
    lane.close()
