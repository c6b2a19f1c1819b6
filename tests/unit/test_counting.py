"""What the metrics of a slice say of its lanes: what waits, and when the first of it is due."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import Headers
from delayservice.engine.census import Waiting
from delayservice.inspection.counting import LaneCounts, count_lane, topic_counts
from delayservice.inspection.query import counts_before
from delayservice.slices.lane import Lane
from delayservice.store.digesting import DigestingStore
from delayservice.store.memory import MemoryStore
from tests.unit.loop_stage import ROUTES, TOPIC, Stage

HOUR_MS = 3_600_000


class Counted(Stage):
    """One slice whose store is counted."""

    def __init__(self) -> None:
        super().__init__()
        store = DigestingStore(MemoryStore())
        lane = Lane(TOPIC, 0, TOPIC, store, self.logs, ROUTES, targets=self.targets)
        contract = Contract(roll_window_ms=HOUR_MS, max_delay_ms=100 * HOUR_MS)
        lane.adopt(Contracts([(0, contract)]))
        self.loop.add_lanes(0, [lane])
        self.own()
        self.before = LaneCounts()

    def control(self, record_id: bytes, op: bytes) -> None:
        rows = self.logs.rows[TOPIC, 0]
        headers: Headers = [("delay-id", record_id), ("delay-op", op)]
        rows.append((len(rows), self.clock.now_ms, None, None, headers))

    def count(self) -> LaneCounts:
        self.step(10, 4)
        self.before = count_lane(self.lane(0), self.clock.now_ms, self.before)
        return self.before


def named(number: int) -> Headers:
    return [("delay-id", b"id-%d" % number)]


@pytest.mark.parametrize("op", [b"cancel", b"fire"])
def test_records_settled_by_a_control_are_not_counted_as_pending(op: bytes) -> None:
    stage = Counted()
    for number in range(4):
        stage.write(0, 60_000 * (number + 1), headers=named(number))
    due_ms = stage.clock.now_ms
    counts = stage.count()
    assert (counts.pending, counts.next_due_ms) == (4, due_ms + 60_000)
    stage.control(b"id-0", op)
    stage.control(b"id-1", op)
    counts = stage.count()
    assert (counts.pending, counts.next_due_ms) == (2, due_ms + 180_000)
    assert counts.targets == {"orders": Waiting(2, 0)}


def test_a_replaced_record_counts_once_at_its_new_due_time() -> None:
    stage = Counted()
    stage.write(0, 60_000, headers=named(0))
    stage.write(0, 90_000, headers=named(0))
    counts = stage.count()
    assert (counts.pending, counts.targets) == (1, {"orders": Waiting(1, 0)})
    assert counts.next_due_ms == stage.clock.now_ms - 40 + 90_000


def test_next_due_is_the_due_time_and_not_the_roll() -> None:
    stage = Counted()
    stage.write(0, 30 * HOUR_MS)
    due_ms = stage.clock.now_ms + 30 * HOUR_MS
    counts = stage.count()
    assert (counts.pending, counts.next_due_ms) == (1, due_ms)
    within = topic_counts(counts, stage.clock.now_ms).within
    assert set(within) == {0}


def test_of_a_burst_that_is_half_settled_the_other_half_is_pending() -> None:
    stage = Counted()
    stage.write(0, *[1_000] * 50, *[1_900] * 50, 20_000)
    assert stage.count().pending == 101
    stage.step(1_000)
    assert len(stage.delivered()) == 50
    counts = stage.count()
    assert counts.pending == 51
    assert counts.targets == {"orders": Waiting(51, 0)}
    stage.step(1_000, 2)
    assert stage.count().pending == 1
    assert topic_counts(stage.count(), stage.clock.now_ms).within == [0, 0, *[1] * 10]
    stage.step(20_000)
    counts = stage.count()
    assert (counts.pending, counts.next_due_ms, counts.targets) == (0, None, {})


def test_an_unchanged_store_is_not_counted_again() -> None:
    stage = Counted()
    stage.write(0, 60_000)
    before = stage.count()
    assert stage.count() is before
    stage.write(0, 60_000)
    assert stage.count() is not before


def test_between_counts_the_first_due_time_is_not_before_what_is_settled() -> None:
    stage = Counted()
    stage.write(0, 100, 20_000)
    before = stage.count()
    assert before.next_due_ms is not None
    due_ms = stage.clock.now_ms - 40 + 20_000
    stage.step(1_000, 4)
    lane, now_ms = stage.lane(0), stage.clock.now_ms
    kept = count_lane(lane, now_ms, before, is_time=False)
    assert (kept.pending, kept.next_due_ms) == (2, due_ms)
    assert count_lane(lane, now_ms, kept).pending == 1
    stage.step(20_000, 4)
    assert count_lane(lane, now_ms, kept, is_time=False).next_due_ms is None


@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 40), st.integers(0, 9)), max_size=9),
    st.lists(st.integers(0, 140), min_size=1, max_size=6, unique=True),
)
def test_counts_before_a_time_are_the_shares_of_all_ranges(
    ranges: list[tuple[int, int, int]], stops: list[int]
) -> None:
    spans = [(start, start + width, count) for start, width, count in ranges]
    stops.sort()
    shares = [
        sum(Fraction(min(max(stop - a, 0), b - a), b - a) * count for a, b, count in spans)
        for stop in stops
    ]
    for found, share in zip(counts_before(spans, stops), shares, strict=True):
        assert abs(found - float(share)) <= 0.5 + 1e-9
