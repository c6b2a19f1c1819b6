"""A level topic's partition against a model of twenty lines: whatever is written, however often it
is aborted, and whoever takes over in between.
"""

from __future__ import annotations

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from delayservice.core.contract import Contract, Contracts
from delayservice.core.cursor import Cursor
from delayservice.core.draft import RULES
from delayservice.core.entry import INVALID, Headers, Row
from delayservice.core.level import LevelRecords, LevelShard
from delayservice.core.outcome import DEAD_LETTERED, Output
from delayservice.core.record import RecordReader
from delayservice.core.settle import Routes, Settler, Verdicts

TOPIC = "delay_topic_1"
ROUTES = Routes("dead", "outcomes", b"secret", 60_000, 0, (1_000,), cast("Any", None))
LEVELS = (Contract(level_ms=100, allow=("a", "b")), Contract(level_ms=40, allow=("b",)))
STEPS_MAX = 40

TEXTS = st.none() | st.sampled_from([b"a", b"b", b"c", b"", b"5"])
TARGETS = st.tuples(st.just("delay-target-topic"), TEXTS)
OTHERS = st.tuples(st.sampled_from(["own", "own-2", "UNIQ_KEY", "DELAY", *RULES]), TEXTS)
HEADERS: st.SearchStrategy[Headers] = st.tuples(
    st.lists(TARGETS, min_size=1, max_size=2), st.lists(OTHERS, max_size=1)
).map(lambda parts: [*parts[0], *parts[1]])
RECORDS = st.lists(st.tuples(st.integers(0, 2), st.integers(-30, 60), HEADERS), max_size=25)
"""Of each record: offsets without one before it, milliseconds since the one before, headers."""
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("read", "settle", "settle", "commit", "abort", "take over"),
                *("wait", "wait for the head, but for a millisecond"),
            ]
        ),
        st.integers(1, 60),
    ),
    max_size=STEPS_MAX,
)


def log_of(records: list[tuple[int, int, Headers]]) -> tuple[list[Row], int]:
    rows: list[Row] = []
    offset, written_ms = 0, 1_000
    for gap, step_ms, headers in records:
        offset, written_ms = offset + gap, max(written_ms + step_ms, 0)
        rows.append((offset, written_ms, b"k", b"v", headers))
        offset += 1
    return rows, offset


class Node:
    """One owner, with a shard, a reader and a memory of its own."""

    def __init__(self, contracts: Contracts, cursor: Cursor) -> None:
        settler = Settler(TOPIC, 0, ROUTES, verdicts := Verdicts())
        reader = RecordReader(TOPIC, 0, contracts, (b"secret",))
        self.shard = LevelShard(5, 10_000)
        records = LevelRecords(reader, contracts, settler, verdicts)
        self.shard.take_over(cursor, 0, records)

    def read(self, rows: list[Row], end: int, count: int) -> None:
        start = self.shard.read
        stop = min(start + count, end)
        self.shard.ingest([row for row in rows if start <= row[0] < stop], stop)


def expected(rows: list[Row], contracts: Contracts) -> list[Output]:
    """Each record by itself, the long way, and with the settler that the precise lane uses."""
    settler = Settler(TOPIC, 0, ROUTES, Verdicts())
    outputs = []
    for row in rows:
        reader = RecordReader(TOPIC, 0, contracts, (b"secret",))
        offset, kind, key_ms, _, payload, extra = reader.read(*row)
        if kind == INVALID:
            outputs.append(settler.dead_letter(offset, payload, *extra))
        else:
            output = settler.settle(offset, key_ms, payload, 10**9, 0)
            assert output is not None
            outputs.append(output)
    return outputs


@given(records=RECORDS, steps=STEPS, changed_at=st.integers(1, 30))
def test_each_record_is_settled_once_in_order_and_never_early(
    records: list[tuple[int, int, Headers]], steps: list[tuple[str, int]], changed_at: int
) -> None:
    rows, end = log_of(records)
    contracts = Contracts([(0, LEVELS[0]), (changed_at, LEVELS[1])])
    written_ms = {row[0]: row[1] for row in rows}
    node, now_ms = Node(contracts, Cursor()), 1_000
    committed: list[Output] = []
    staged: list[Output] = []
    everything = [("read", end), ("wait", 10_000), ("settle", 100), ("commit", 1)]
    for step, amount in steps + everything:
        if step == "read":
            node.read(rows, end, amount)
        elif step == "wait":
            now_ms += 4 * amount
        elif step == "wait for the head, but for a millisecond":
            now_ms = max(now_ms, (node.shard.next_due_ms() or 0) - 1)
        elif step == "settle":
            outputs = node.shard.advance(now_ms, amount)
            for output in outputs:
                offset = output[7]
                assert written_ms[offset] + contracts.at(offset).level_ms <= now_ms
            staged += outputs
        elif step == "commit":
            node.shard.commit()
            committed += staged
            staged = []
        else:
            staged = []
            if step == "abort":
                node.shard.abort()
            else:
                node = Node(contracts, node.shard.committed)
    # Whether a record expired depends on when it was settled; its outcome says so in any case.
    wanted = expected(rows, contracts)
    assert [output[7] for output in committed] == [row[0] for row in rows]
    for output, alone in zip(committed, wanted, strict=True):
        if not any(name == "delay-expires-at" for name, _ in rows_headers(rows, output[7])):
            assert output == alone
        assert (output[0] == DEAD_LETTERED) == (alone[0] == DEAD_LETTERED)
    assert node.shard.committed.offset == end


def rows_headers(rows: list[Row], offset: int) -> Headers:
    return next(row[4] or [] for row in rows if row[0] == offset)
