"""A copy is rebuilt from the log, and a damaged slot is read again; nothing is forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from delayservice.base.errors import KafkaEdgeError, SlotDamagedError
from delayservice.contract.codec import Payload
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import Headers, PolledRecord
from delayservice.contract.requeue import write_copy
from delayservice.engine.cursor import Cursor, Frame
from delayservice.engine.ports import Bounds, Place, PolledBatch
from delayservice.slices import log_reading
from delayservice.slices.lane import Lane
from delayservice.slices.log_reading import SlotFound, SlotWanted
from delayservice.store.base import Store
from delayservice.store.memory import MemoryStore
from delayservice.store.wheel import WheelOptions
from tests.rocks import LoneRocks
from tests.unit.lanes import TOPIC, QuietSource, lane_of, read_again, routes_of
from tests.unit.loop_stage import Inline
from tests.wheels import LoneStore, slot_files

HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS
WINDOW_MS = 6 * HOUR_MS
RECORDS = 60
RUN = 7


class Log(QuietSource):
    """A log of records that are due in the next three hours; each tenth bears one of two ids."""

    def __init__(self) -> None:
        super().__init__()
        self.start = 0
        self.end = RECORDS
        self.scanned: list[tuple[int, int]] = []
        self.more: PolledRecord | None = None

    def bounds(self, _place: Place) -> Bounds:
        return Bounds(self.start, self.end)

    def row(self, offset: int) -> PolledRecord:
        if self.more is not None and offset == self.more[0]:
            return self.more
        headers: Headers = [
            ("delay-after", b"%d" % (offset * 3 * HOUR_MS // RECORDS)),
            ("delay-target-topic", b"orders"),
        ]
        if offset % 10 == 0:
            headers.append(("delay-id", b"id %d" % (offset % 20)))
        return (offset, START_MS, None, b"value %d" % offset, headers)

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


def mended(lane: Lane) -> list[Frame]:
    """What the store holds, once every damaged slot was read again."""
    while True:
        try:
            return list(lane.store.scanner(for_repair=True).frames((0, 0), START_MS * 2))
        except SlotDamagedError as damage:
            lane._want_slot(damage)
            read_again(lane)


def lose(lane: Lane, start_ms: int, stop_ms: int) -> None:
    """The store forgets a range, and does not know."""
    lane.store.rebuild(start_ms, stop_ms, [])


def test_the_loop_does_not_wait_for_a_silent_leader(
    lane: Lane, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = Mock(side_effect=log.bounds)
    monkeypatch.setattr(log, "bounds", silent)
    reading, before = Inline(), held(lane)
    reading.holds = True
    steps = lane.start_over(reading)
    for _ in range(3):
        next(steps)
    assert held(lane) == before
    assert not silent.called
    reading.run()
    list(steps)
    assert held(lane) == []


def test_a_whole_copy_is_read_again_from_the_log(lane: Lane, log: Log) -> None:
    before = held(lane)
    lose(lane, START_MS + HOUR_MS, START_MS + 2 * HOUR_MS)
    list(lane.start_over(Inline()))
    assert held(lane) == []
    assert lane.shard.wanted == 0
    lane.ingest(log.run(0, RECORDS))
    assert held(lane) == before


@pytest.mark.parametrize(
    ("key_ms", "is_kept"), [(START_MS, True), (START_MS + 2 * HOUR_MS, False)], ids=["last", "past"]
)
def test_the_last_copy_is_kept(lane: Lane, log: Log, key_ms: int, *, is_kept: bool) -> None:
    # The log starts in the middle of the second hour; records that K has passed are no reason.
    lane.follow(Cursor((key_ms, 0), RECORDS))
    log.start = 30
    before = held(lane)
    if is_kept:
        with pytest.raises(KafkaEdgeError, match="below offset 30"):
            list(lane.start_over(Inline()))
        assert held(lane) == before
    else:
        list(lane.start_over(Inline()))
        assert (held(lane), lane.shard.wanted) == ([], 30)


def test_an_owners_copy_is_never_started_over(lane: Lane, log: Log) -> None:
    steps = lane.start_over(Inline())
    next(steps)
    lane.take_over(Cursor(), log.bounds(lane.place))
    before = held(lane)
    with pytest.raises(KafkaEdgeError, match="this node delivers"):
        list(steps)
    assert (held(lane), lane.shard.owned) == (before, True)


def test_a_large_slot_is_read_in_parts(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = WheelOptions(slot_ms=HOUR_MS)
    lane = filled(LoneStore(tmp_path, options), log)
    before = held(lane)
    lane.close()
    slot_files(tmp_path)[1].unlink()
    monkeypatch.setattr(log_reading, "_BYTES_MAX", RECORDS // 6 * (log_reading._FRAME_BYTES + 100))
    lane = opened(LoneStore(tmp_path, options), log)
    assert mended(lane) == before
    assert len(log.scanned) > 1
    lane.close()


def test_a_requeued_record_of_a_damaged_slot_keeps_its_canceller(log: Log) -> None:
    # It was cancelled before it was requeued, so what cancels it lies before it in the log.
    lane = filled(MemoryStore(), log)
    payload: Payload = ("orders", -1, None, b"v", [], START_MS + 1, (b"id 10", b"0", 1, None))
    original = write_copy(
        *lane.place,
        b"secret",
        settles=10,
        source=b"0",
        base=11,
        at_ms=START_MS + 1,
        payload=payload,
    )
    log.more = (RECORDS, START_MS, *original)
    damage = SlotDamagedError(
        "gone",
        start_ms=START_MS,
        stop_ms=START_MS + 2,
        first_offset=RECORDS,
        stop_offset=RECORDS + 1,
    )
    found = lane.log.read(SlotWanted(damage, RECORDS + 1))
    assert isinstance(found, SlotFound)
    assert [frame[:3] for frame in found.frames] == [(START_MS + 1, RECORDS, 30)]


def test_lost_slots_in_a_row_are_read_again_at_once(tmp_path: Path, log: Log) -> None:
    lane = filled(LoneStore(tmp_path), log)
    before = held(lane)
    lane.close()
    files = slot_files(tmp_path)
    for path in files:
        path.unlink()
    lane = opened(LoneStore(tmp_path), log)
    assert mended(lane) == before
    assert len(files) > len(log.scanned) == 1
    lane.close()
