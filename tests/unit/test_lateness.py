"""Lateness and pending records as a loop and a store count them."""

from __future__ import annotations

import tempfile
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delayservice.contract.codec import Meta, encode_payload
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import OFFSET_MAX, Headers
from delayservice.engine import census, outcome
from delayservice.engine.census import (
    HOUR_MS,
    MINUTE_MS,
    OTHERS,
    Census,
    Waiting,
    group_of,
    largest,
    with_others,
)
from delayservice.engine.cursor import NO_MARK, Cursor, Frame, Key, Mark, Named
from delayservice.engine.outcome import DELIVERED, PAST_DUE, RESUMED, Output, OutputCounters
from delayservice.inspection.counting import LaneCounts, count_lane, topic_counts
from delayservice.inspection.query import counts_before
from delayservice.metrics.counts import TARGETS_MAX, WorkerMetrics
from delayservice.process.observer import MetricsObserver
from delayservice.slices.lane import Lane
from delayservice.store import digesting
from delayservice.store.base import Store
from delayservice.store.digesting import DigestingStore
from delayservice.store.memory import MemoryStore
from tests.rocks import LoneRocks
from tests.unit.loop_stage import NOW_MS, ROUTES, TOPIC, Stage
from tests.wheels import LoneStore


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
def test_counts_are_shares_of_ranges(ranges: list[tuple[int, int, int]], stops: list[int]) -> None:
    spans = [(start, start + width, count) for start, width, count in ranges]
    stops.sort()
    shares = [
        sum(Fraction(min(max(stop - a, 0), b - a), b - a) * count for a, b, count in spans)
        for stop in stops
    ]
    for found, share in zip(counts_before(spans, stops), shares, strict=True):
        assert abs(found - float(share)) <= 0.5 + 1e-9


# --- what waits, by target and by when it is due, against the plain definition, on every store ----


START_MS = 472_223 * HOUR_MS
TARGETS = ("orders", "mails", "missing")
every_store = pytest.mark.parametrize("kind", ["memory", "wheel", "rocksdb"])


def frame(offset: int, ahead_ms: int, target: str = "orders") -> Frame:
    return framed(offset, START_MS + ahead_ms, START_MS + ahead_ms, target, None)


def framed(offset: int, key_ms: int, due_ms: int, target: str, meta: Meta | None) -> Frame:
    return key_ms, offset, NO_MARK, encode_payload((target, -1, None, b"v", [], due_ms, meta))


def opened(kind: str, folder: Path) -> DigestingStore:
    made: dict[str, type[Store]] = {"wheel": LoneStore, "rocksdb": LoneRocks}
    inner = MemoryStore() if kind == "memory" else made[kind](folder / "shard")  # type: ignore[call-arg]
    store = DigestingStore(inner)
    store.open()
    return store


def scan(store: DigestingStore) -> None:
    store.begin_scan()
    while not store.scan_on():
        pass
    store.digest.finish()


class World:
    """A store, and what waits in it by the plain definition."""

    def __init__(self, store: DigestingStore) -> None:
        self.store = store
        self.waits: dict[Key, tuple[str, int, bool]] = {}
        self.ids: dict[bytes, Key] = {}
        self.stop = 0
        self.k_ms = START_MS

    def add(self, ahead_ms: int, far_ms: int, target: str, number: int, attempt: int) -> None:
        """A record, which replaces the one of its id; a ``number`` of 0: it has none."""
        key_ms = self.k_ms + ahead_ms
        record_id = b"id-%d" % number if number else None
        meta: Meta | None = (record_id, None, attempt, None)
        row = framed(self.stop, key_ms, key_ms + far_ms, target, meta)
        marks: list[Mark] = []
        named: list[Named] = []
        if record_id is not None:
            if record_id in self.ids:
                marks.append((record_id, *self.ids[record_id], self.stop))
                self.waits.pop(self.ids[record_id], None)
            group = group_of(key_ms, target, key_ms + far_ms, is_parked=attempt > 1)
            named.append((record_id, *row[:2], group))
            self.ids[record_id] = row[:2]
        self.stop += 1
        self.waits[row[:2]] = target, key_ms + far_ms, attempt > 1
        self.store.append([row], named, marks, self.stop)

    def settle(self, minutes: int) -> None:
        """All with keys in the next minutes are read, as delivery does, and settled."""
        before = (self.k_ms - 1, OFFSET_MAX)
        self.k_ms += minutes * MINUTE_MS
        self.store.read_due(before, self.k_ms - 1, 1_000)
        self.waits = {key: one for key, one in self.waits.items() if key[0] >= self.k_ms}
        self.ids = {name: key for name, key in self.ids.items() if key[0] >= self.k_ms}
        self.store.prune(Cursor((self.k_ms - 1, OFFSET_MAX), self.stop))

    def check(self) -> None:
        held = self.store.census
        assert held is not None
        assert self.store.pending == len(self.waits)
        wanted: dict[str, Waiting] = {}
        for target, _, is_parked in self.waits.values():
            one = wanted.get(target, Waiting(0, 0))
            wanted[target] = Waiting(one.pending + 1, one.parked + is_parked)
        assert held.by_target(len(self.waits)) == wanted
        stops_ms = [START_MS + hour * HOUR_MS for hour in range(60)]
        dues = [due_ms for _, due_ms, _ in self.waits.values()]
        ranges = held.ranges(self.k_ms, len(self.waits))
        assert counts_before(ranges, stops_ms) == [sum(d < stop for d in dues) for stop in stops_ms]


added = st.tuples(
    st.one_of(st.integers(0, 2 * MINUTE_MS), st.integers(0, 2 * HOUR_MS)),
    st.sampled_from([0, 0, HOUR_MS, 30 * HOUR_MS]),
    st.sampled_from(TARGETS),
    st.integers(0, 3),
    st.sampled_from([1, 1, 2]),
)
steps = st.lists(
    st.one_of(added, st.integers(1, 2), st.integers(1, 70), st.just("scan")), max_size=30
)


@every_store
@settings(max_examples=25)
@given(steps=steps)
def test_counts_are_those_of_the_plain_definition_after_any_steps(
    kind: str, steps: list[tuple[int, int, str, int, int] | int | str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(opened(kind, Path(folder)))
        world.settle(0)
        for step in steps:
            if isinstance(step, tuple):
                world.add(*step)
            elif isinstance(step, int):
                world.settle(step)
            else:
                scan(world.store)
            world.check()
        world.store.close()


@every_store
def test_changes_during_a_scan_count_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digesting, "SCAN_ROWS", 1)
    world = World(opened(kind, tmp_path))
    world.add(500, 0, "orders", 0, 1)
    for number in range(1, 4):
        world.add(number * 1_000, 0, "orders", number, 1)
    world.settle(0)
    world.store.begin_scan()
    for number in (1, 2, 3, 1):  # what lies before and behind what the scan has read
        world.store.scan_on()
        world.add(1_500, 0, "mails", number, 1)
        world.add(2 * HOUR_MS, 0, "missing", number, 1)
    while not world.store.scan_on():
        pass
    world.store.digest.finish()
    world.check()
    world.store.close()


@every_store
def test_the_rest_of_the_first_minute_is_counted_exactly(kind: str, tmp_path: Path) -> None:
    store = opened(kind, tmp_path)
    rows = [frame(n, n, "mails" if n % 2 else "orders") for n in range(100)]
    marks: list[Mark] = [(b"%d" % n, *rows[n][:2], 107) for n in range(10)]
    named: list[Named] = [(b"%d" % n, *rows[n][:2], ("mails", 0, False)) for n in range(10)]
    later = [frame(n, MINUTE_MS, "later") for n in range(100, 107)]
    store.append([*rows, *later], named, marks, 108)
    store.read_due((0, -1), START_MS + 1_000, 100)
    store.prune(Cursor(rows[79][:2], 108))
    assert store.pending == 27
    assert store.census is not None
    assert store.census.by_target(27) == {
        "mails": Waiting(9, 0),  # a share of those that are not marked
        "orders": Waiting(11, 0),
        "later": Waiting(7, 0),
    }
    store.close()


def test_a_store_that_was_not_read_yet_says_nothing_by_target(tmp_path: Path) -> None:
    store = opened("wheel", tmp_path)
    store.append([frame(0, MINUTE_MS)], [], [], 1)
    store.close()
    again = opened("wheel", tmp_path)
    again.prune(Cursor((START_MS, OFFSET_MAX), 1))
    assert (again.census, again.pending) == (None, 1)
    scan(again)
    assert again.census is not None
    assert again.census.by_target(1) == {"orders": Waiting(1, 0)}
    again.close()


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=60))
def test_uncounted_targets_are_counted_together(records: list[tuple[int, int]]) -> None:
    held = Census()
    rows = [frame(n, m * MINUTE_MS, f"t{t}") for n, (m, t) in enumerate(records)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(census, "ENTRIES_MAX", 4)
        held.add(rows)
    found = held.by_target(len(rows))
    assert sum(waiting.pending for waiting in found.values()) == len(rows)
    assert len(found) <= 5
    for row, (_, target) in zip(rows, records, strict=True):
        held.cancel(row[0], (f"t{target}", 0, False))
    assert held.pending(len(rows)) == 0
    assert held.by_target(0) == {}


def test_the_largest_targets_keep_their_names_and_all_others_are_one() -> None:
    waiting = {f"t{n}": Waiting(10 * n, n % 3) for n in range(1, 8)}
    found = with_others(waiting, largest(waiting, 3))
    assert {*found} == {"t2", "t7", "t6", OTHERS}
    assert sum(one.pending for one in found.values()) == sum(w.pending for w in waiting.values())
    assert sum(one.parked for one in found.values()) == sum(w.parked for w in waiting.values())
    assert with_others({"t1": Waiting(1, 0)}, ["t1"]) == {"t1": Waiting(1, 0)}
