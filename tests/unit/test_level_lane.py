"""Level topics: their lanes, their shards, and which level a delay goes to."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, groupby
from typing import Any, cast

import pytest
import structlog

from delayservice.base.errors import DelayServiceError
from delayservice.contract.codec import Payload
from delayservice.contract.codes import COPY_FORGED, TIME_INVALID
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import Headers, PolledRecord
from delayservice.contract.levels import (
    DEFAULT_LEVELS_MS,
    PRESETS,
    ROCKETMQ_LEVELS_MS,
    level_of,
    level_topic,
)
from delayservice.contract.provenance import Provenance
from delayservice.contract.requeue import read_copy, write_copy
from delayservice.engine import outcome
from delayservice.engine.checkpoint import LastRead, Lost
from delayservice.engine.cursor import START_KEY, Cursor
from delayservice.engine.outcome import PARKED, Output
from delayservice.engine.ports import Bounds, PolledBatch, Source, Targets
from delayservice.slices.lane import Lane
from tests.unit.known_targets import KnownTargets
from tests.unit.lanes import QuietSource, routes_of, window_of
from tests.unit.test_settle import Takes

TOPIC = "delay_topic_1"
NOW_MS = 1_800_000_000_000
LEVEL_MS = 5_000
LEVEL = Contracts([(0, Contract(level_ms=LEVEL_MS))])
OLD, NEW, MARKER = 3, 5, -2
"""Leader epochs."""


class Stage:
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
    # Records below H may be pending in a store that this lane does not have.
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


# --- a level topic's partition: in the order of the log, never early, and put back when aborted ---


ANY = "delay_topic_any"
SECRET = b"a secret of the cluster"
TO_ORDERS: Headers = [("delay-target-topic", b"orders")]
LEVEL_OF_TEN = Contract(level_ms=LEVEL_MS)
BLOCKED = ("target-unknown", "not there")


def row(offset: int, written_ms: int = NOW_MS, headers: Headers | None = None) -> PolledRecord:
    return (offset, written_ms, b"key", b"v%d" % offset, TO_ORDERS if headers is None else headers)


class Owned:
    """A shard that this node owns from offset 0 on."""

    def __init__(
        self,
        *contracts: tuple[int, Contract],
        records_max: int = 100,
        bytes_max: int = 10_000,
        targets: KnownTargets | None = None,
    ) -> None:
        routes = routes_of(60_000, 1_000, 2_000, secret=SECRET)
        self.park_topic: str | None = ANY
        self.targets = targets or KnownTargets()
        self.window = window_of(records_max, bytes_max, lambda: self.park_topic)
        self.lane = Lane(
            TOPIC, 0, "id", self.window, cast("Source", QuietSource()), routes, self.targets
        )
        self.lane.adopt(Contracts(contracts or [(0, LEVEL_OF_TEN)]))
        self.lane.take_over(Cursor(), Bounds(0, 0))
        self.shard = self.lane.shard

    def take(self, *rows: PolledRecord, stop: int | None = None) -> None:
        stop = rows[-1][0] + 1 if stop is None else stop
        self.lane.ingest(PolledBatch((TOPIC, 0), self.shard.read, list(rows), stop))

    @property
    def room(self) -> tuple[bool, bool]:
        return self.window.is_full, self.window.is_half_empty

    def settle(self, now_ms: int, limit: int = 1_000) -> list[Output]:
        return list(chain.from_iterable(self.lane.settle_due(now_ms, limit, 10**9)))


def offsets(outputs: list[Output]) -> list[int]:
    return [output[7] for output in outputs]


def code(output: Output) -> str:
    return (dict(output[5])["delay-error"] or b"").decode()


def test_staged_outputs_reserve_the_capacity_of_a_small_target() -> None:
    owned = Owned()
    owned.take(row(0), row(1, NOW_MS + 1))
    outputs = owned.settle(NOW_MS + LEVEL_MS)
    assert offsets(outputs) == [0]
    assert owned.targets.reserved == outputs


def test_a_record_is_delivered_after_its_level_as_it_was_written() -> None:
    owned = Owned()
    owned.take(row(0), row(1, headers=[("own", b"1"), *TO_ORDERS, ("own", None)]))
    assert owned.settle(NOW_MS + LEVEL_MS - 1) == []
    due = b"%d" % (NOW_MS + LEVEL_MS)
    added = [("delay-due-at", due), ("delay-source", b"delay_topic_1:0:1"), ("delay-settles", b"1")]
    outputs = owned.settle(NOW_MS + LEVEL_MS)
    assert offsets(outputs) == [0, 1]
    headers = [("own", b"1"), ("own", None), *added]
    assert outputs[1] == (0, "orders", -1, b"key", b"v1", headers, NOW_MS + LEVEL_MS, 1)


def test_records_behind_the_head_wait_for_it_after_a_clock_step() -> None:
    owned = Owned()
    owned.take(row(0, NOW_MS), row(1, NOW_MS + 700), row(2, NOW_MS + 50), row(3, NOW_MS + 60))
    assert offsets(owned.settle(NOW_MS + LEVEL_MS + 100)) == [0]
    assert owned.lane.next_due_ms() == NOW_MS + LEVEL_MS + 700
    assert offsets(owned.settle(NOW_MS + LEVEL_MS + 699)) == []
    assert offsets(owned.settle(NOW_MS + LEVEL_MS + 700)) == [1, 2, 3]
    assert owned.shard.staged == Cursor((NOW_MS + LEVEL_MS + 700, 3), 4)


def test_the_cursor_means_what_rule_1_says() -> None:
    # Else everything would come again when the topic is a level topic no longer.
    owned = Owned()
    assert owned.shard.committed.key == START_KEY
    dues = {}
    for offset, step_ms in enumerate((0, 30, 10, 10, 90, 20)):
        owned.take(row(offset, NOW_MS + step_ms))
        dues[offset] = NOW_MS + step_ms + LEVEL_MS
    for now_ms in range(NOW_MS + LEVEL_MS, NOW_MS + LEVEL_MS + 100, 7):
        owned.settle(now_ms, limit=2)
        staged = owned.shard.staged
        settled = [o for o, due_ms in dues.items() if staged.has_settled((due_ms, o), -1)]
        assert settled == list(range(staged.offset))


def test_the_cursor_passes_offsets_without_a_record_only_when_their_turn_has_come() -> None:
    owned = Owned()
    owned.take(row(3), stop=9)
    owned.settle(NOW_MS)
    assert owned.shard.staged.offset == 3
    owned.settle(NOW_MS + LEVEL_MS)
    assert owned.shard.staged.offset == 9
    owned.take(stop=12)
    owned.settle(NOW_MS + LEVEL_MS)
    assert owned.shard.staged.offset == 12


def test_it_is_full_by_number_or_size_and_has_room_again_below_half() -> None:
    owned = Owned(records_max=10, bytes_max=1_000)
    owned.take(*(row(offset) for offset in range(9)))
    assert owned.room == (False, False)
    owned.take(row(9))
    assert owned.room == (True, False)
    owned.settle(NOW_MS + LEVEL_MS, limit=4)
    assert owned.room == (False, False)
    owned.settle(NOW_MS + LEVEL_MS, limit=1)
    assert owned.room == (False, True)
    big: PolledRecord = (10, NOW_MS, None, b"x" * 900, TO_ORDERS)
    owned.take(big)
    assert owned.room == (True, False)
    owned.settle(NOW_MS + LEVEL_MS)
    assert owned.room == (True, False), "what is staged may come back, so its bytes count"
    owned.lane.committed()
    assert owned.room == (False, True)


def test_a_changed_delay_holds_for_what_was_written_from_then_on() -> None:
    owned = Owned((0, LEVEL_OF_TEN), (2, Contract(level_ms=1_000)))
    owned.take(*(row(offset) for offset in range(4)))
    assert owned.settle(NOW_MS + 1_000) == []
    outputs = owned.settle(NOW_MS + LEVEL_MS)
    assert [output[6] - NOW_MS for output in outputs] == [5_000, 5_000, 1_000, 1_000]


@pytest.mark.parametrize("written_ms", [-1, 2**60])
def test_a_timestamp_that_can_t_be_holds_nothing_up(written_ms: int) -> None:
    owned = Owned()
    owned.take(row(0, written_ms), row(1, NOW_MS - LEVEL_MS))
    assert owned.lane.next_due_ms() == 0
    outputs = owned.settle(NOW_MS)
    assert code(outputs[0]) == TIME_INVALID
    assert offsets(outputs) == [0, 1]


def test_a_genuine_copy_that_somebody_put_here_is_no_copy_here() -> None:
    owned = Owned()
    payload: Payload = ("orders", -1, None, b"v", [], NOW_MS + 10**9, None)
    key, value, headers = write_copy(
        TOPIC, 0, SECRET, settles=0, source=b"s", base=1, at_ms=NOW_MS, payload=payload
    )
    owned.take((5, NOW_MS, key, value, headers))
    assert code(owned.settle(NOW_MS + LEVEL_MS)[0]) == COPY_FORGED


def test_a_parked_level_record_goes_to_the_precise_topic_with_its_source() -> None:
    owned = Owned()
    owned.take(row(0), row(1, headers=[("delay-target-topic", b"mails")]), row(2))
    owned.targets.why["orders", -1] = BLOCKED
    now_ms = NOW_MS + LEVEL_MS
    outputs = owned.settle(now_ms)
    assert [output[0] for output in outputs] == [outcome.PARKED, 0, outcome.PARKED]
    _, topic, partition, key, value, headers, _, offset = outputs[2]
    assert (topic, partition, offset) == (ANY, 0, 2)
    assert read_copy(TOPIC, 0, (SECRET,), (key, value, headers)) is None, "signed for another"
    copy = read_copy(ANY, 0, (SECRET,), (key, value, headers))
    assert copy is not None
    _, at_ms, payload = copy
    assert at_ms == now_ms + 1_000
    assert payload[5] == now_ms
    assert payload[6] == (None, b"delay_topic_1:0:2", 2, None)
    text = dict(headers)["delay-copy"] or b""
    assert b'"settles":2' in text
    assert b'"shard":"delay_topic_1:0"' in text


def test_a_refused_level_record_is_dead_lettered_and_the_next_delivered() -> None:
    owned = Owned()
    owned.lane.verdicts.refuse([(1, ("too-large", "more than it takes"))])
    owned.take(row(0), row(1), row(2))
    outputs = owned.settle(NOW_MS + LEVEL_MS)
    assert [output[0] for output in outputs] == [0, outcome.DEAD_LETTERED, 0]
    assert code(outputs[1]) == "too-large"
    assert owned.lane.verdicts.refused
    owned.lane.committed()
    assert not owned.lane.verdicts.refused, "it is forgotten with the commit that settles it"


def test_a_large_level_record_is_compared_with_what_even_a_fit_target_takes() -> None:
    targets = Takes("orders", "too-large")
    targets.writable.add(("orders", -1))
    owned = Owned(targets=targets)
    key, large = b"key", b"v" * 600_000
    owned.take(
        row(0),
        (1, NOW_MS, key, large, TO_ORDERS),
        (2, NOW_MS, key, None, [*TO_ORDERS, ("own", large)]),
        row(3),
    )
    outputs = owned.settle(NOW_MS + LEVEL_MS)
    letter = outcome.DEAD_LETTERED
    assert [output[0] for output in outputs] == [0, letter, letter, 0]


def test_a_record_that_expired_unserved_is_expired() -> None:
    owned = Owned()
    expires: Headers = [*TO_ORDERS, ("delay-expires-at", b"%d" % (NOW_MS + LEVEL_MS))]
    owned.take(row(0, headers=expires), row(1, headers=expires))
    assert [output[0] for output in owned.settle(NOW_MS + LEVEL_MS, limit=1)] == [0]
    assert [output[0] for output in owned.settle(NOW_MS + LEVEL_MS + 1)] == [outcome.EXPIRED]


def test_the_outcome_of_a_parked_copy_names_its_source_partition() -> None:
    # An auditor joins on it: the source is in the level topic, the offset is not.
    there = Provenance(ANY, 0)
    meta = (None, b"delay_topic_1:0:2", 2, None)
    parked = dict(there.headers(77, NOW_MS, meta))
    assert (parked["delay-settles"], parked["delay-shard"]) == (b"77", b"delay_topic_any:0")
    rolled = there.headers(77, NOW_MS, (None, b"delay_topic_any:0:2", 2, None))
    assert "delay-shard" not in dict(rolled)
    assert "delay-shard" not in dict(there.headers(77, NOW_MS, None))


# --- which level waits long enough ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("delay_ms", "level"),
    [(0, 1), (5_000, 1), (5_001, 2), (30_000, 3), (7_200_000, 12), (7_200_001, 12), (2**60, 12)],
)
def test_a_delay_goes_to_the_next_level_up_or_the_last(delay_ms: int, level: int) -> None:
    assert level_of(delay_ms, DEFAULT_LEVELS_MS) == level


def test_no_level_lies_in_the_past() -> None:
    with pytest.raises(DelayServiceError, match="-1"):
        level_of(-1, DEFAULT_LEVELS_MS)


@pytest.mark.parametrize("levels_ms", PRESETS.values())
def test_presets_ascend(levels_ms: tuple[int, ...]) -> None:
    assert list(levels_ms) == sorted(set(levels_ms))


def test_rocketmq_has_eighteen() -> None:
    assert len(ROCKETMQ_LEVELS_MS) == 18
    assert level_topic(18) == "delay_topic_18"
