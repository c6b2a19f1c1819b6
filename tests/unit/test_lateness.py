"""Lateness and pending records as a loop counts them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import Headers
from delayservice.engine import outcome
from delayservice.engine.census import OTHERS, Waiting
from delayservice.engine.outcome import DELIVERED, PAST_DUE, RESUMED, Output, OutputCounters
from delayservice.inspection.counting import LaneCounts, count_lane, topic_counts
from delayservice.inspection.query import counts_before
from delayservice.metrics.counts import TARGETS_MAX, WorkerMetrics
from delayservice.process.observer import MetricsObserver
from delayservice.slices.lane import Lane
from delayservice.store.digesting import DigestingStore
from delayservice.store.memory import MemoryStore
from tests.unit.loop_stage import NOW_MS, ROUTES, TOPIC, Stage


class Watched(Stage):
    def __init__(self) -> None:
        super().__init__(0)
        self.metrics = MetricsObserver()
        self.heard.settled = self.metrics.settled  # type: ignore[method-assign]
        self.own()

    @property
    def punctual(self) -> int:
        return sum(self.metrics.worker.lateness.counts)

    def apart(self, kind: str) -> tuple[int, float]:
        found = self.metrics.worker.apart[kind]
        return sum(found.counts), found.sum_ms


def write_due_at(stage: Stage, due_ms: int) -> None:
    rows = stage.logs.rows.setdefault((TOPIC, 0), [])
    asked = [("delay-at", b"%d" % due_ms), ("delay-target-topic", b"orders")]
    rows.append((len(rows), stage.clock.now_ms, None, b"v", list(asked)))


def test_a_record_of_1970_is_late_by_the_time_since_it_was_written() -> None:
    stage = Watched()
    for _ in range(2):  # before K has passed anything, and after
        write_due_at(stage, 1_000)
        stage.step(10, 4)
    count, sum_ms = stage.apart(PAST_DUE)
    assert count == 2
    assert sum_ms < 200
    assert stage.punctual == 0
    assert stage.metrics.worker.early == 0
    assert stage.metrics.worker.settled == {"delivered": 2}
    assert not stage.lane(0).past_due, "what is settled is forgotten"


def test_a_record_that_was_written_in_time_is_late_by_the_time_since_it_was_due() -> None:
    stage = Watched()
    stage.write(0, 50)
    stage.step(10, 12)
    assert stage.punctual == 1
    assert stage.metrics.worker.lateness.sum_ms < 50
    assert stage.apart(PAST_DUE) == (0, 0)
    assert sum(stage.metrics.worker.targets[TOPIC]["orders"].counts) == 1


def test_lateness_of_postponed_records_is_counted_apart() -> None:
    tally = OutputCounters()
    plain: Output = (DELIVERED, "orders", -1, None, b"v", [], NOW_MS, 1)
    resumed: Output = (DELIVERED, "mails", -1, None, b"v", [], -(NOW_MS + 700), 2)
    late: Output = (DELIVERED, "mails", -1, None, b"v", [], 1_000, 3)
    tally.add([plain, resumed, late], TOPIC, {3: NOW_MS + 900})
    observer = MetricsObserver()
    observer.settled(tally, NOW_MS + 1_000)
    assert observer.worker.lateness.sum_ms == 1_000
    assert observer.worker.apart[RESUMED].sum_ms == 300
    assert observer.worker.apart[PAST_DUE].sum_ms == 100
    assert observer.worker.settled == {"delivered": 3}


def test_only_so_many_past_due_records_are_noted() -> None:
    noted = outcome.PastDue()
    count = outcome.NOTED_MAX + 5
    rows = [(n, 9_000, None, None, None) for n in range(count)]
    noted.note(rows, [(n, 0, 1_000, None, None, None) for n in range(count)])
    assert len(noted) == outcome.NOTED_MAX


def test_targets_beyond_the_first_ones_are_counted_together() -> None:
    metrics = WorkerMetrics()
    for number in range(2 * TARGETS_MAX):
        metrics.delivered(f"delay-{number % 2}", f"target-{number}", [1])
    series = [len(targets) for targets in metrics.targets.values()]
    assert sum(series) == TARGETS_MAX + 2
    others = [sum(targets[OTHERS].counts) for targets in metrics.targets.values()]
    assert others == [TARGETS_MAX // 2] * 2


# --- what the metrics of a slice say of its lanes: what waits, and when the first of it is due ----


HOUR_MS = 3_600_000


class Counted(Stage):
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
def test_counts_before_are_shares_of_ranges(
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
