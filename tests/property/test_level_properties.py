"""A level topic's partition against a model of twenty lines: whatever is written, however often it
is aborted, and whoever takes over in between.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TypeAlias, cast

from hypothesis import given
from hypothesis import strategies as st

from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import INVALID, Headers, PolledRecord
from delayservice.contract.input_headers import INPUT
from delayservice.contract.record import RecordReader
from delayservice.contract.targets import Allowlist
from delayservice.engine.cursor import Cursor
from delayservice.engine.outcome import DELIVERED, EXPIRED, Output
from delayservice.engine.ports import Bounds, PolledBatch, Source
from delayservice.engine.settle import Settler
from delayservice.engine.undelivered import Verdicts
from delayservice.slices.lane import Lane
from tests.unit.known_targets import KnownTargets
from tests.unit.lanes import QuietSource, routes_of, window_of

TOPIC = "delay_topic_1"
ROUTES = routes_of(60_000, 1_000, allowlist=lambda topic: Allowlist(topic, ["b"]))
LEVELS = (Contract(level_ms=100), Contract(level_ms=40), Contract(level_ms=60))
WRITABLE = (("a", -1), ("b", -1))

TEXTS = st.none() | st.sampled_from([b"a", b"b", b"c", b"", b"5"])
TARGETS = st.tuples(st.just("delay-target-topic"), TEXTS)
OTHERS = st.tuples(st.sampled_from(["own", "own-2", "UNIQ_KEY", "DELAY", *INPUT]), TEXTS)
HEADERS: st.SearchStrategy[Headers] = st.tuples(
    st.lists(TARGETS, min_size=1, max_size=2), st.lists(OTHERS, max_size=1)
).map(lambda parts: [*parts[0], *parts[1]])
RECORDS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(-30, 60), HEADERS), min_size=1, max_size=25
)
"""Of each record: offsets without one before it, milliseconds since the one before, headers."""


def log_of(records: list[tuple[int, int, Headers]]) -> tuple[list[PolledRecord], int]:
    rows: list[PolledRecord] = []
    offset, written_ms = 0, 1_000
    for gap, step_ms, headers in records:
        offset, written_ms = offset + gap, max(written_ms + step_ms, 0)
        rows.append((offset, written_ms, b"k", b"v", headers))
        offset += 1
    return rows, offset


class World:
    """A log, the clock, and whoever owns the shard: with a reader and a memory of its own."""

    def __init__(self, rows: list[PolledRecord], end: int, contracts: Contracts) -> None:
        self.rows, self.end, self.contracts = rows, end, contracts
        self.now_ms = 1_000
        self.staged: list[Output] = []
        self.committed: list[Output] = []
        self._own(Cursor())

    def _own(self, cursor: Cursor) -> None:
        targets = KnownTargets(writable=WRITABLE)
        source = cast("Source", QuietSource())
        self.lane = Lane(TOPIC, 0, "id", window_of(5, 10_000), source, ROUTES, targets)
        self.lane.adopt(self.contracts)
        self.lane.take_over(cursor, Bounds(0, self.end))
        self.shard = self.lane.shard

    def read(self, count: int) -> None:
        start = self.shard.read
        stop = min(start + count, self.end)
        rows = [row for row in self.rows if start <= row[0] < stop]
        self.lane.ingest(PolledBatch((TOPIC, 0), start, rows, stop))

    def wait(self, ms: int) -> None:
        self.now_ms += ms

    def wait_nearly(self) -> None:
        self.now_ms = max(self.now_ms, (self.lane.next_due_ms() or 0) - 1)

    def settle(self, limit: int) -> None:
        written_ms = {row[0]: row[1] for row in self.rows}
        outputs = list(chain.from_iterable(self.lane.settle_due(self.now_ms, limit, 10**9)))
        for output in outputs:
            offset = output[7]
            assert written_ms[offset] + self.contracts.at(offset).level_ms <= self.now_ms
        self.staged += outputs

    def go_on(self) -> None: ...

    def commit(self) -> None:
        self.lane.committed()
        self.committed += self.staged
        self.staged = []

    def take_over(self) -> None:
        self._own(self.shard.committed)
        self.staged = []


def expected(rows: list[PolledRecord], contracts: Contracts) -> list[Output]:
    """Each record by itself, the long way, and with the settler of other topics."""
    settler = Settler(TOPIC, 0, ROUTES, Verdicts(), KnownTargets())
    settler.requeuer.contracts = contracts
    outputs = []
    for row in rows:
        reader = RecordReader(TOPIC, 0, contracts, (b"secret",))
        offset, kind, key_ms, _, payload, extra = reader.read(*row)
        if kind == INVALID:
            output = settler.undelivered.dead_letter(offset, payload, *extra)
        else:
            output = settler.settle(offset, key_ms, payload, 10**9, 0)
        assert output is not None
        outputs.append(output)
    return outputs


Step: TypeAlias = Callable[[World], None]
TURNS: st.SearchStrategy[list[list[Step]]] = st.lists(
    st.tuples(
        st.integers(0, 9).map(lambda count: lambda world: world.read(count)),
        st.integers(0, 99).map(lambda ms: lambda world: world.wait(ms))
        | st.just(World.wait_nearly),
        st.integers(1, 9).map(lambda limit: lambda world: world.settle(limit)),
        st.sampled_from([World.go_on, World.commit, World.commit, World.take_over]),
    ).map(list),
    max_size=20,
)


@given(records=RECORDS, turns=TURNS, changed_at=st.integers(1, 30), levels=st.permutations(LEVELS))
def test_each_record_is_settled_once_in_order_and_never_early(
    records: list[tuple[int, int, Headers]],
    turns: list[list[Step]],
    changed_at: int,
    levels: list[Contract],
) -> None:
    rows, end = log_of(records)
    world = World(rows, end, Contracts([(0, levels[0]), (changed_at, levels[1])]))
    for step in chain.from_iterable(turns):
        step(world)
    world.read(end)
    world.wait(10_000)
    world.settle(len(rows))
    world.commit()
    assert [output[7] for output in world.committed] == [row[0] for row in rows]
    assert world.shard.committed.offset == end
    for output, alone in zip(world.committed, expected(rows, world.contracts), strict=True):
        # Whether a record expired depends on when it was settled, and on nothing else.
        assert output == alone or {output[0], alone[0]} == {DELIVERED, EXPIRED}
