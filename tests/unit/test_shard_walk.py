"""The walk of H where it could take long, and the walk of K beside it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayservice.contract.codec import Payload
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.cron import cron_time
from delayservice.contract.entry import CANCEL, COPY, FIRE, SCHEDULE, Entry, Headers
from delayservice.engine import outcome
from delayservice.engine.cursor import Additions, Cursor, Key
from delayservice.engine.outcome import Output, Routes
from delayservice.engine.settle import Settler
from delayservice.engine.shard import Shard
from delayservice.engine.undelivered import Verdicts
from delayservice.slices.lane import Lane
from delayservice.store.memory import MemoryStore
from tests.unit.known_targets import KnownTargets, any_target
from tests.unit.loop_stage import Logs

ROUTES = Routes("letters", "outcomes", b"secret", 1_000, 0, (), cron_time, allowlist=any_target)
IDS = st.sampled_from([b"a", b"b", b"c"])
OFFSETS = st.integers(0, 5)


def shard() -> Shard:
    made = Shard(Settler("delay_topic_any", 0, ROUTES, Verdicts(), KnownTargets()), 0)
    made.take_over(Cursor(), [], 0)
    return made


def nothing_pending(_: Key) -> Payload:
    raise AssertionError("nothing is pending")


FAR: Payload = ("orders", -1, None, b"", [], 9_000, None)


def fire(offset: int) -> Entry:
    return (offset, FIRE, 0, b"%d" % (offset % 100), (None, None, []), None)


def test_fired_records_are_read_within_the_time_limit_but_at_least_one() -> None:
    # Each may lie anywhere; a turn is not to take minutes.
    walked = shard()
    walked.walk.victims = {n: {(9_000, n - 100): None} for n in range(100, 200)}
    walked.staged = walked.committed = Cursor((0, 2**63 - 1), 100)
    walked.read = walked.stored = walked.seen = 100
    walked.ingest(100, [fire(n) for n in range(100, 200)], 200, {}, lambda _, __: None)
    reads: list[Key] = []

    def pending_at(key: Key) -> Payload:
        reads.append(key)
        return FAR

    turns = []
    while walked.staged.offset < 200:
        before = len(reads)
        walked.advance_offset(1, 10_000, pending_at, lambda: len(reads) % 40 != 0)
        turns.append(len(reads) - before)
    assert turns == [40, 40, 20]


def test_a_copy_that_came_back_late_is_fired_without_reading_the_log() -> None:
    # A new client for each of them would take the loop's time.
    walked = shard()
    walked.take_over(Cursor((5_000, 0), 0), [], 0)
    copy: Entry = (1, COPY, 4_000, b"0", (*FAR[:6], (b"0", b"source", 2, None)), 0)
    walked.ingest(0, [fire(0), copy], 2, {1: 0}, lambda _, __: None)
    outputs = walked.advance_offset(1, 10_000, nothing_pending)
    assert [(output[0], output[7]) for output in outputs] == [
        (outcome.FIRED, 1),
        (outcome.FIRED, 0),
    ]


@given(st.lists(st.tuples(st.booleans(), IDS, OFFSETS)), IDS, OFFSETS)
def test_a_flying_copy_is_found(
    changes: list[tuple[bool, bytes, int]], asked: bytes, offset: int
) -> None:
    walk, pairs = shard().walk, set[tuple[bytes, int]]()
    copy: Output = (outcome.ROLLED, "delay_topic_any", 0, None, None, [], 0, 0)
    for is_new, record_id, base in changes:
        if is_new:
            walk._flying([copy], record_id, base)
            pairs.add((record_id, base))
        else:
            walk.came_back(record_id, base)
            pairs.discard((record_id, base))
    assert walk.waits == bool(pairs)
    found = any(name == asked and base <= offset for name, base in pairs)
    assert walk._awaits_copy(asked, offset) == found


# --- the two walks ------------------------------------------------------------------------------

TOPIC = "delay_topic_any"
NOW_MS = 1_900_000_000_000
WIDE = Routes("letters", "outcomes", b"secret", 3_600_000, 0, (), cron_time, allowlist=any_target)


def test_staged_outputs_reserve_their_size_in_the_transaction() -> None:
    walked = Walked()
    walked.targets.small = {"orders"}
    walked.cancel(b"nothing", NOW_MS)
    walked.write(10, 20)
    walked.own()
    walked.read()
    walked.walk_h(NOW_MS)
    assert walked.targets.reserved == walked.staged != []
    walked.walk_k(NOW_MS + 10)
    assert walked.targets.reserved == walked.staged
    assert len(walked.staged) == 2


class Walked:
    """A lane, its log, and what it has staged."""

    def __init__(self) -> None:
        self.log = Logs()
        self.targets = KnownTargets()
        self.lane = Lane(TOPIC, 0, "id", MemoryStore(), self.log, WIDE, targets=self.targets)
        self.lane.adopt(Contracts([(0, Contract())]))
        self.staged: list[Output] = []

    def write(self, *delays_ms: int, at_ms: int = NOW_MS) -> None:
        self.log.write((TOPIC, 0), at_ms, delays_ms)

    def cancel(self, record_id: bytes, at_ms: int) -> None:
        rows = self.log.rows.setdefault((TOPIC, 0), [])
        asked: Headers = [("delay-op", b"cancel"), ("delay-id", record_id)]
        rows.append((len(rows), at_ms, None, None, asked))

    def read(self) -> None:
        for run in self.log.poll(0, 1_000):
            self.lane.ingest(run)

    def own(self) -> None:
        self.lane.take_over(Cursor(), self.log.bounds((TOPIC, 0)))

    def walk_h(self, now_ms: int) -> None:
        self.staged += self.lane.settle_late(now_ms, 1_000, lambda: True)

    def walk_k(self, now_ms: int) -> list[tuple[int, int]]:
        chunks = self.lane.settle_due(now_ms, 1_000, 1 << 20)
        outputs = [output for chunk in chunks for output in chunk]
        self.staged += outputs
        return [(output[0], output[7]) for output in outputs]


@pytest.mark.parametrize(("waited_ms", "goes"), [(0, False), (249, False), (250, True)])
def test_k_waits_for_h_no_longer_than_a_quarter_of_a_second(waited_ms: int, *, goes: bool) -> None:
    walked = Walked()
    walked.own()
    walked.write(0, 100)
    walked.read()
    walked.walk_h(NOW_MS)
    walked.write(60_000, at_ms=NOW_MS + 50)  # read, and H does not get to it
    walked.read()
    now_ms = NOW_MS + 50 + waited_ms
    due = [0, 1] if goes else [0]
    assert walked.walk_k(now_ms) == [(outcome.DELIVERED, offset) for offset in due]


def test_fires_that_hit_nothing_read_nothing_and_are_walked_at_once() -> None:
    walked = shard()
    added = walked.ingest(0, [fire(n) for n in range(100)], 100, {}, lambda _, __: None)
    assert added == Additions()
    outputs = walked.advance_offset(1, 10_000, nothing_pending)
    assert [output[0] for output in outputs] == [outcome.NOT_PENDING] * 100


def test_an_owner_that_fills_its_store_again_keeps_only_marks_that_h_has_not_passed() -> None:
    owner = Shard(Settler("delay_topic_any", 0, ROUTES, Verdicts(), KnownTargets()), 0)
    owner.take_over(Cursor((1, 0), 1_000), [], 1_200)
    latest: dict[bytes, Key] = {}
    for offset in range(0, 1_200, 2):
        payload: Payload = ("orders", -1, None, b"", [], 9_000, (b"id", None, 1, None))
        pair: list[Entry] = [
            (offset, SCHEDULE, 9_000, b"id", payload, None),
            (offset + 1, CANCEL, 0, b"id", (None, None, []), None),
        ]
        added = owner.ingest(offset, pair, offset + 2, {}, lambda name, _: latest.get(name))
        assert [mark[3] for mark in added.marks] == [offset + 1]  # the store marks each
    assert sorted(owner.walk.victims) == list(range(1_001, 1_200, 2))
