"""Repair of a copy: rebuilt from the log, a damaged slot, commands, the records of an hour."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock, create_autospec

import pytest
from structlog.testing import capture_logs

from delayservice.base.errors import DelayServiceError, KafkaEdgeError, SlotDamagedError
from delayservice.contract.codec import Payload
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import Headers, PolledRecord
from delayservice.contract.requeue import write_copy
from delayservice.engine.cursor import NO_GROUP, Cursor, Frame
from delayservice.engine.ports import Bounds, Place, PolledBatch
from delayservice.process import answering
from delayservice.process.answering import hour_records
from delayservice.replicas.commands import Command, RecordHash, Report, Verb
from delayservice.replicas.digest import HOUR_MS, frame_hash
from delayservice.slices import log_reading
from delayservice.slices.copies import CopyKeeper
from delayservice.slices.digests import SliceDigests
from delayservice.slices.lane import Lane
from delayservice.slices.log_reading import SlotFound, SlotWanted
from delayservice.store.base import NO_MARK, Store
from delayservice.store.memory import MemoryStore
from delayservice.store.wheel import WheelOptions
from tests.rocks import LoneRocks
from tests.unit.lanes import TOPIC, QuietSource, lane_of, read_again, routes_of
from tests.unit.loop_stage import Inline
from tests.wheels import LoneStore, slot_files

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


def test_a_log_that_grows_while_its_copy_is_started_over_is_not_called_truncated(
    lane: Lane,
) -> None:
    steps = lane.start_over(Inline())
    next(steps)  # the log's end is told
    later = Cursor((START_MS, RECORDS), RECORDS + 5)
    lane.follow(later)
    with capture_logs() as told:
        list(steps)
    assert (told, lane.shard.committed, lane.shard.stored) == ([], later, 0)


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


# --- commands on copies: rebuilds, and the records of an hour -------------------------------------


TOPIC_ID, NOW_MS = "id", 1_000


def command(verb: Verb, partition: int, expires_ms: int, **more: Any) -> Command:
    place: dict[str, Any] = {"node": "n1", "topic": TOPIC, "partition": partition}
    return Command(plan="p", step=1, command=verb, expires_ms=expires_ms, **place, **more)


class Keeper:
    """A keeper with one copy; ``said`` are its answers."""

    def __init__(self) -> None:
        self.said: list[Report] = []
        self.digests = create_autospec(SliceDigests, instance=True)
        self.digests.is_reading = False
        self.lane = create_autospec(Lane, instance=True)
        self.lane.topic_id = TOPIC_ID
        self.lane.window = None
        self.lanes: dict[str, Any] = {TOPIC: self.lane}
        clock = SimpleNamespace(wall_ms=lambda: NOW_MS)
        self.keeper = CopyKeeper(self.digests, self.said.append, cast("Any", clock))

    def ask(self, verb: Verb, expires_ms: int = NOW_MS + 1, **more: Any) -> None:
        self.keeper.ask(command(verb, 0, expires_ms, **more))

    def turn(self, *, is_owner: bool = False) -> None:
        self.keeper.turn(self.lanes, cast("Any", None), is_owner=is_owner)

    @property
    def why(self) -> str:
        (report,) = self.said
        assert report.status == "failed"
        return report.detail


@pytest.fixture
def keeper() -> Keeper:
    return Keeper()


def test_a_rebuild_goes_on_turn_by_turn_and_is_reported_after_a_scan(keeper: Keeper) -> None:
    keeper.lane.start_over.return_value = iter([None] * 3)
    keeper.ask("rebuild")
    for _ in range(3):
        keeper.turn()
        assert keeper.keeper.is_busy
        assert not keeper.digests.ask_scan.called
    keeper.turn()
    assert not keeper.keeper.is_busy
    keeper.digests.ask_scan.call_args.args[1]()
    assert [one.status for one in keeper.said] == ["done"]


def test_a_copy_that_is_closed_meanwhile_is_let_go(keeper: Keeper) -> None:
    keeper.lane.start_over.return_value = iter([None] * 3)
    keeper.ask("rebuild")
    keeper.turn()
    keeper.lanes = {TOPIC: create_autospec(Lane, instance=True)}
    keeper.turn()
    assert "closed" in keeper.why
    assert not keeper.keeper.is_busy


def test_a_log_that_can_not_be_read_fails_the_command_and_nothing_else(keeper: Keeper) -> None:
    def steps() -> Iterator[None]:
        yield
        raise KafkaEdgeError("no broker")

    keeper.lane.start_over.return_value = steps()
    keeper.ask("rebuild")
    keeper.turn()
    keeper.turn()
    assert keeper.why == "no broker"
    assert not keeper.digests.ask_scan.called


@pytest.mark.parametrize("verb", ["rebuild", "scan"])
def test_orders_that_expired_or_are_for_other_nodes_are_ignored(keeper: Keeper, verb: Verb) -> None:
    keeper.ask(verb, expires_ms=NOW_MS - 1)
    keeper.turn()
    assert "expired" in keeper.why
    keeper.said.clear()
    keeper.lanes = {}
    keeper.ask(verb)
    keeper.turn()
    assert "not kept here" in keeper.why
    assert not keeper.lane.start_over.called
    assert not keeper.digests.ask_scan.called


def test_a_copy_is_rebuilt_on_a_replica_and_never_on_the_owner(keeper: Keeper) -> None:
    keeper.lane.start_over.return_value = iter([None])
    keeper.ask("rebuild")
    keeper.turn(is_owner=True)
    assert "this node delivers" in keeper.why
    assert "restart the node" in keeper.why
    assert not keeper.lane.start_over.called
    keeper.ask("rebuild")
    keeper.turn()
    keeper.turn()
    keeper.digests.ask_scan.call_args.args[1]()
    assert keeper.said[-1].status == "done"


def test_an_owner_reads_its_copy_from_the_disk(keeper: Keeper) -> None:
    keeper.ask("scan")
    keeper.turn(is_owner=True)
    keeper.digests.ask_scan.call_args.args[1]()
    assert [one.status for one in keeper.said] == ["done"]


def test_a_topic_that_was_made_anew_is_not_touched(keeper: Keeper) -> None:
    keeper.lane.start_over.return_value = iter([None])
    keeper.ask("rebuild", topic_id="another")
    keeper.turn()
    assert "made anew" in keeper.why
    assert not keeper.lane.start_over.called
    keeper.ask("rebuild", topic_id=TOPIC_ID)
    keeper.turn()
    assert keeper.lane.start_over.called


# --- a worker tells the records of one hour of a copy, a few at a time ----------------------------


ALL: list[Frame] = [(HOUR_MS + n * HOUR_MS // 20, n, NO_MARK, b"value %d" % n) for n in range(60)]
TOLD: list[RecordHash] = [
    (key_ms, offset, 55 if offset == 21 else NO_MARK, f"{hashed:016x}")
    for key_ms, offset, _, data in ALL[20:40]
    for hashed in [frame_hash(key_ms, offset, None, data)]
]


def hours_lane() -> SimpleNamespace:
    store = MemoryStore()
    store.open()
    store.append(ALL, [(b"id", *ALL[21][:2], NO_GROUP)], [(b"id", *ALL[21][:2], 55)], 60)
    made = SimpleNamespace(topic=TOPIC, topic_id="id", store=store)
    made.window = None
    return made


class Thread:
    """The loop's thread; its lanes may be opened anew between two looks at them."""

    def __init__(self, *lanes: SimpleNamespace) -> None:
        self.lanes = list(lanes)
        self.looks = 0

    @contextmanager
    def looking(self, slice_no: int, timeout_s: float) -> Iterator[Mapping[str, Any]]:
        assert (slice_no, timeout_s) == (3, answering.LOOK_TIMEOUT_S)
        self.looks += 1
        now = self.lanes.pop(0) if len(self.lanes) > 1 else self.lanes[0]
        yield {TOPIC: now}


def told(thread: Thread, **more: Any) -> tuple[list[RecordHash], bool]:
    asked = command("records", 3, NOW_MS, hour_ms=2 * HOUR_MS, **more)
    return hour_records(asked, cast("Any", thread), NOW_MS)


@pytest.fixture(autouse=True)
def _few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "_HOUR_ROWS", 6)


def test_the_records_of_an_hour_are_told_in_key_order_with_their_cancellers() -> None:
    thread = Thread(hours_lane())
    assert told(thread) == (TOLD, False)
    assert thread.looks > len(TOLD) // 6


def test_of_a_large_hour_the_first_records_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "ROWS_MAX", 10)
    assert told(Thread(hours_lane())) == (TOLD[:10], True)
    monkeypatch.setattr(answering, "ROWS_MAX", 20)
    assert told(Thread(hours_lane())) == (TOLD, False)


def test_a_copy_that_is_opened_anew_meanwhile_is_read_on() -> None:
    before, after = hours_lane(), hours_lane()
    assert told(Thread(before, after)) == (TOLD, False)


def test_a_topic_that_was_made_anew_is_not_read() -> None:
    with pytest.raises(DelayServiceError, match="made anew"):
        told(Thread(hours_lane()), topic_id="another")
