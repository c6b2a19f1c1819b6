"""Searches and counts over many shards against the plain definition, on every store."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delayservice.base.errors import SlotDamagedError
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import OFFSET_MAX, Headers, PolledRecord
from delayservice.engine.cursor import Cursor
from delayservice.engine.ports import PolledBatch
from delayservice.inspection import looking
from delayservice.inspection.query import (
    BacklogCounts,
    Find,
    Locate,
    Page,
    Position,
    Search,
    counts_before,
    merged,
)
from delayservice.slices.lane import Lane
from delayservice.store.base import Store
from delayservice.store.digesting import DigestingStore
from delayservice.store.memory import MemoryStore
from tests.rocks import LoneRocks
from tests.unit.lanes import QuietSource, lane_of, routes_of
from tests.wheels import LoneStore

NOW_MS = 1_700_000_000_000 // 60_000 * 60_000
WINDOW_MS = 600_000
HOUR_MS = 3_600_000
TOPICS = ("delay_topic_a", "delay_topic_b")
TARGETS = ("orders", "mails")
KINDS = ("memory", "wheel", "rocksdb")
every_store = pytest.mark.parametrize("kind", KINDS)

# (delay in ms, number of target, id or None)
Record = tuple[int, int, int | None]
records = st.lists(
    st.tuples(
        st.one_of(st.integers(1_000, WINDOW_MS), st.integers(WINDOW_MS, 50 * HOUR_MS)),
        st.integers(0, 1),
        st.none() | st.integers(0, 3),
    ),
    max_size=30,
)
worlds = st.lists(records, min_size=1, max_size=4)


def make_store(kind: str, folder: Path) -> Store:
    inner: Store = (
        MemoryStore() if kind == "memory" else (LoneStore if kind == "wheel" else LoneRocks)(folder)
    )
    return DigestingStore(inner)


class World:
    """Shards with what was written, as the lanes have it and as the test remembers it."""

    def __init__(self, stack: ExitStack, kind: str, shards: list[list[Record]]) -> None:
        folder = self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.lanes: list[Lane] = []
        self.due: dict[Position, tuple[int, str, bytes | None]] = {}
        self.rows: dict[tuple[str, int], list[PolledRecord]] = {}
        for number, written in enumerate(shards):
            lane = self._lane(
                TOPICS[number % 2], number // 2, make_store(kind, folder / str(number))
            )
            stack.callback(lane.close)
            self._write(lane, written)
            self.lanes.append(lane)

    def _lane(self, topic: str, partition: int, store: Store) -> Lane:
        routes = routes_of(WINDOW_MS, 1_000)
        lane = lane_of(store, QuietSource(), routes, (topic, partition))
        contract = Contract(roll_window_ms=WINDOW_MS, max_delay_ms=100 * HOUR_MS)
        lane.adopt(Contracts([(0, contract)]))
        lane.follow(Cursor())
        return lane

    def _write(self, lane: Lane, written: list[Record]) -> None:
        rows = self.rows[lane.topic, lane.partition] = []
        by_id: dict[bytes, Position] = {}
        for offset, (delay_ms, target, number) in enumerate(written):
            record_id = None if number is None else b"id-%d" % number
            headers: Headers = [
                ("delay-after", b"%d" % delay_ms),
                ("delay-target-topic", TARGETS[target].encode()),
            ]
            if record_id is not None:
                headers.append(("delay-id", record_id))
            rows.append((offset, NOW_MS, None, b"value", headers))
            key_ms = NOW_MS + min(delay_ms, WINDOW_MS)
            position = (key_ms, lane.topic, lane.partition, offset)
            if record_id is not None:
                self.due.pop(by_id.get(record_id, position), None)
                by_id[record_id] = position
            self.due[position] = (NOW_MS + delay_ms, TARGETS[target], record_id)
        if rows:
            lane.ingest(PolledBatch(lane.place, 0, rows, len(rows)))
        lane.follow(Cursor((0, OFFSET_MAX), len(rows)))
        lane.store.prune(lane.shard.committed)

    def search(self, asked: Search) -> Page:
        searches = [looking.LaneSearch(lane, asked) for lane in self.lanes]
        for one in searches:
            while not one.is_over:
                one.read()
                one.sift()
        return merged([one.page() for one in searches], asked.limit)


def state_of(lane: Lane, row: PolledRecord) -> str:
    return looking.locate(lane, Locate(topic=lane.topic, partition=lane.partition, row=row)).state


@every_store
@settings(max_examples=15)
@given(
    shards=worlds,
    bounds=st.tuples(st.integers(0, 40 * HOUR_MS), st.integers(1, 60 * HOUR_MS)),
    target=st.sampled_from([None, "orders", "m*"]),
    limit=st.integers(1, 7),
    scan_max=st.integers(1, 9),
)
def test_pages_together_are_all_that_is_pending_in_the_range(
    kind: str,
    shards: list[list[Record]],
    bounds: tuple[int, int],
    target: str | None,
    limit: int,
    scan_max: int,
) -> None:
    with ExitStack() as stack:
        world = World(stack, kind, shards)
        from_ms, to_ms = NOW_MS + bounds[0], NOW_MS + bounds[0] + bounds[1]
        wanted = sorted(
            position
            for position, (due_ms, topic, _) in world.due.items()
            if from_ms <= due_ms < to_ms and (target is None or topic[0] == target[0])
        )
        found: list[Position] = []
        after: Position | None = None
        while True:
            asked = Search(
                from_ms=from_ms,
                to_ms=to_ms,
                target=target,
                limit=limit,
                scan_max=scan_max,
                after=after,
                beyond_window=True,
            )
            page = world.search(asked)
            assert len(page.rows) <= limit
            found += [row.position for row in page.rows]
            if page.upto is None:
                break
            assert after is None or page.upto > after  # it comes to an end
            after = page.upto
        assert found == wanted


def test_a_search_counts_what_it_can_not_read_and_a_look_for_one_record_fails() -> None:
    with ExitStack() as stack:
        world = World(stack, "wheel", [[(60_000, 0, 1), (500_000, 0, 2)]])
        (lane,) = world.lanes
        lane.store.sync()
        first, _ = sorted(world.folder.glob("**/slots/*"))
        first.write_bytes(b"")
        page = world.search(Search(from_ms=NOW_MS, to_ms=NOW_MS + HOUR_MS, limit=9, scan_max=99))
        assert ([row.position for row in page.rows], page.damaged) == (sorted(world.due)[1:], 1)
        assert looking.ahead({lane.topic: lane}, NOW_MS).total == 1
        lost, kept = world.rows[lane.place]
        with pytest.raises(SlotDamagedError):
            looking.find(lane, Find(record_id=b"id-1"))
        with pytest.raises(SlotDamagedError):
            state_of(lane, lost)
        assert looking.find(lane, Find(record_id=b"id-2")) is not None
        assert state_of(lane, kept) == "pending"
        lane.follow(Cursor((NOW_MS + 60_000, 0), 2))
        assert state_of(lane, lost) == "settled"  # that is known without the store


@every_store
@settings(max_examples=15)
@given(shards=worlds, widths=st.lists(st.integers(1, 60), min_size=1, max_size=5))
def test_pending_counts_by_due_time(
    kind: str, shards: list[list[Record]], widths: list[int]
) -> None:
    with ExitStack() as stack:
        world = World(stack, kind, shards)
        backlog = BacklogCounts(now_ms=NOW_MS)
        for lane in world.lanes:
            lanes: dict[str, Lane] = {lane.topic: lane}
            backlog.add(looking.ahead(lanes, NOW_MS))
        assert backlog.total == len(world.due)
        for hours in widths:  # whole hours: that is as fine as what is far is counted
            stop_ms = (NOW_MS // HOUR_MS + hours) * HOUR_MS
            within = sum(1 for due_ms, _, _ in world.due.values() if due_ms < stop_ms)
            assert counts_before(backlog.ranges, [stop_ms]) == [within]


@every_store
@pytest.mark.parametrize("due", [0, 51, 1_500])
def test_records_due_later_in_this_minute_are_not_due_yet(kind: str, due: int) -> None:
    written: list[Record] = [(1_000 + n % 20_000, 0, None) for n in range(due)]
    written += [(50_000 + n, 0, None) for n in range(300)]
    with ExitStack() as stack:
        (lane,) = World(stack, kind, [written]).lanes
        found = looking.ahead({lane.topic: lane}, NOW_MS + 30_000)
        counts = counts_before(found.ranges, [NOW_MS + 30_000, NOW_MS + 60_000])
        assert (found.total, counts) == (due + 300, [due, due + 300])


@every_store
@settings(max_examples=15)
@given(shards=worlds)
def test_id_and_offset_find_exactly_what_is_pending(kind: str, shards: list[list[Record]]) -> None:
    with ExitStack() as stack:
        world = World(stack, kind, shards)
        for number in range(4):
            record_id = b"id-%d" % number
            rows = [looking.find(lane, Find(record_id=record_id)) for lane in world.lanes]
            found = {row.position for row in rows if row is not None}
            assert found == {p for p, (_, _, name) in world.due.items() if name == record_id}
        for lane in world.lanes:
            for row in world.rows[lane.topic, lane.partition]:
                pending = {(p[1], p[2], p[3]) for p in world.due}
                is_pending = (lane.topic, lane.partition, row[0]) in pending
                assert state_of(lane, row) == ("pending" if is_pending else "settled")


@every_store
def test_a_copy_behind_h_does_not_take_for_settled_what_it_has_not_read(kind: str) -> None:
    with ExitStack() as stack:
        (lane,) = World(stack, kind, [[(1_000, 0, None)]]).lanes
        headers: Headers = [("delay-after", b"2000"), ("delay-target-topic", b"orders")]
        row = (1, NOW_MS, None, b"value", headers)
        for k_ms, h, state in ((0, 1, "unread"), (0, 2, "unread"), (NOW_MS + 2_000, 2, "settled")):
            lane.follow(Cursor((k_ms, OFFSET_MAX), h))
            assert state_of(lane, row) == state
