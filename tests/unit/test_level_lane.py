"""The lane of a level topic: what it fetches, when it holds back, and what it can't serve."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, cast

import structlog

from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import PolledRecord
from delayservice.engine.checkpoint import LastRead, Lost
from delayservice.engine.cursor import START_KEY, Cursor
from delayservice.engine.outcome import PARKED, Output
from delayservice.engine.ports import Bounds, PolledBatch, Source, Targets
from delayservice.slices.lane import Lane
from tests.unit.known_targets import KnownTargets
from tests.unit.lanes import QuietSource, routes_of, window_of

TOPIC = "delay_topic_1"
NOW_MS = 1_800_000_000_000
LEVEL_MS = 5_000
LEVEL = Contracts([(0, Contract(level_ms=LEVEL_MS))])
OLD, NEW, MARKER = 3, 5, -2
"""Leader epochs."""


class Stage:
    """A lane at its log."""

    def __init__(self, contracts: Contracts = LEVEL, park_topic: str | None = None) -> None:
        self.log = QuietSource()
        routes = routes_of(60_000, 1_000)
        self.targets = KnownTargets()
        self.lane = Lane(
            *(TOPIC, 0, "id"),
            window_of(10, park_topic=lambda: park_topic),
            cast("Source", self.log),
            routes,
            targets=cast("Targets", self.targets),
        )
        self.lane.follow(Cursor())
        self.lane.adopt(contracts)

    def own(self, offset: int = 0, start: int = 0, end: int = 100) -> None:
        self.lane.take_over(Cursor(START_KEY, offset), Bounds(start, end))

    def read(self, start: int, stop: int, epoch: int = -1) -> int:
        headers: Any = [("delay-target-topic", b"orders")]
        rows: list[PolledRecord] = [
            (o, NOW_MS + o, None, b"v", headers) for o in range(start, stop)
        ]
        return self.lane.ingest(PolledBatch((TOPIC, 0), start, rows, stop, epoch))

    def read_all(self, epochs: Sequence[int]) -> None:
        """Read a log to its end, wherever the lane seeks. ``epochs``: of the leader that appended
        each offset; ``MARKER`` for one that holds no record.
        """
        at, log = self.log.seeks[-1][0], self.log
        while at < len(epochs):
            epoch, offsets = next(groupby(range(at, len(epochs)), epochs.__getitem__))
            stop, sought = list(offsets)[-1] + 1, len(log.seeks)
            if epoch == MARKER:
                self.lane.ingest(PolledBatch((TOPIC, 0), at, [], stop))
            else:
                self.read(at, stop, epoch)
            at = stop if len(log.seeks) == sought else log.seeks[-1][0]

    def delivered(self) -> list[int]:
        """Settle and commit all that is read; the offsets."""
        offsets = [output[7] for output in self.settle(NOW_MS + 10**6)]
        self.lane.committed()
        return offsets

    def settle(self, now_ms: int, limit: int = 1_000, bytes_max: int = 10**6) -> list[Output]:
        chunks = self.lane.settle_due(now_ms, limit, bytes_max)
        return [output for chunk in chunks for output in chunk]

    def events(self, offset: int, start: int, end: int) -> list[str]:
        with structlog.testing.capture_logs() as logs:
            self.own(offset, start, end)
        return [entry["event"] for entry in logs]


def test_a_replica_fetches_nothing_and_is_never_behind() -> None:
    stage = Stage()
    assert stage.log.position == -1
    stage.lane.follow(Cursor(START_KEY, 70))
    assert stage.log.position == -1
    assert stage.lane.shard.stored == 70
    assert stage.read(70, 75) == 0


def test_it_holds_back_while_enough_waits_and_fetches_again_when_half_is_gone() -> None:
    stage = Stage()
    stage.own()
    stage.read(0, 9)
    assert not stage.log.paused
    stage.read(9, 12)
    assert stage.log.paused
    due_ms = NOW_MS + LEVEL_MS
    assert len(stage.settle(due_ms + 5)) == 6
    assert stage.log.paused
    assert len(stage.settle(due_ms + 6)) == 1
    assert not stage.log.paused


def test_a_pause_does_not_outlive_the_ownership() -> None:
    stage = Stage()
    stage.own()
    stage.read(0, 12)
    stage.lane.step_down()
    assert not stage.log.paused
    stage.own()
    stage.read(0, 12)
    stage.lane.close()
    assert not stage.log.paused


def test_one_step_is_bounded_in_records_and_bytes() -> None:
    stage = Stage()
    stage.own()
    stage.read(0, 12)
    due_ms = NOW_MS + LEVEL_MS + 100
    assert len(stage.settle(due_ms, limit=4)) == 4
    mean_bytes = len("delay-target-topic") + len("orders") + len("v")
    assert len(stage.settle(due_ms, bytes_max=3 * mean_bytes)) == 4


def test_pending_of_a_level_is_counted_up_to_the_known_log_end() -> None:
    stage = Stage()
    stage.own(0, end=30)
    stage.read(0, 5)
    assert stage.lane.stats().pending == 30
    stage.lane.shard.reaches(50)
    stage.settle(NOW_MS + LEVEL_MS + 1)
    stage.lane.committed()
    stats = stage.lane.stats()
    assert (stats.pending, stage.lane.next_due_ms()) == (48, NOW_MS + LEVEL_MS + 2)
    assert stats.durable_offset == stage.lane.shard.stored == 50


def test_parking_goes_to_the_topic_that_is_there_now() -> None:
    for park_topic, kind in (("delay_topic_any", PARKED), (None, 1)):
        stage = Stage(park_topic=park_topic)
        stage.own()
        stage.targets.why["orders", -1] = ("target-unknown", "not there")
        stage.read(0, 1)
        (output,) = stage.settle(NOW_MS + LEVEL_MS)
        assert (output[0], output[1]) == (kind, park_topic or "letters")


def test_a_log_that_was_cut_is_reported_and_what_is_there_is_served() -> None:
    stage = Stage()
    assert stage.events(offset=50, start=0, end=40) == ["log_truncated"]
    assert stage.log.position == 40
    assert stage.events(offset=50, start=60, end=90) == ["offsets_lost"]
    assert stage.log.position == 60
    assert stage.lane.checkpoint().lost == (Lost(50, 60),)
    assert stage.events(offset=50, start=10, end=50) == []


# --- a log that has lost its end, and has grown again -------------------------------------------


def test_records_that_retention_deleted_are_not_searched() -> None:
    stage = Stage()
    stage.lane.take_over(Cursor(START_KEY, 100), Bounds(98, 103, NEW), LastRead(OLD, 90))
    stage.read_all([MARKER] * 98 + [NEW] * 5)
    assert [offset for offset, _ in stage.log.seeks] == [99, 98]
    assert stage.delivered() == [98, 99, 100, 101, 102]
    stage = Stage()
    stage.lane.take_over(Cursor(START_KEY, 100), Bounds(100, 103, NEW), LastRead(OLD, 90))
    assert [offset for offset, _ in stage.log.seeks] == [100]


def test_each_look_begins_much_further_back_than_the_one_before() -> None:
    stage = Stage()
    stage.lane.take_over(Cursor(START_KEY, 10_000), Bounds(0, 10_003, NEW), LastRead(OLD, 9_999))
    stage.read_all([OLD] * 2_000 + [NEW] * 8_003)
    assert [offset for offset, _ in stage.log.seeks] == [
        9_999,
        9_998,
        9_990,
        9_926,
        9_414,
        5_318,
        0,
    ]


def test_a_log_that_is_read_again_below_h_has_to_reach_h() -> None:
    stage = Stage()
    assert stage.lane.awaited_end == 0
    stage.lane.take_over(Cursor(START_KEY, 100), Bounds(0, 103, NEW), LastRead(OLD, 99))
    assert stage.lane.awaited_end == 100
    stage.read(99, 103, OLD)
    assert stage.lane.awaited_end == 0
    stage.lane.take_over(Cursor(START_KEY, 100), Bounds(0, 103, OLD), LastRead(OLD, 99))
    assert stage.lane.awaited_end == 0, "it waits at H for whatever comes"


def test_a_topic_that_was_precise_is_left_alone_and_its_cursor_stays() -> None:
    """Records below H may be pending in a store that this lane does not have."""
    stage = Stage()
    precise = Contract()
    stage.lane.adopt(Contracts([(0, precise), (60, LEVEL.at(0))]))
    cursor = Cursor((NOW_MS, 7), 60)
    with structlog.testing.capture_logs() as logs:
        stage.lane.take_over(cursor, Bounds(0, 100))
    assert [entry["event"] for entry in logs] == ["level_topic_was_precise"]
    assert stage.log.position == -1
    assert stage.settle(NOW_MS + 10**9) == []
    assert stage.lane.checkpoint().cursor == cursor
    assert not stage.lane.shard.is_staged
