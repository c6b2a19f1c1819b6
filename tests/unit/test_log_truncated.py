"""Logs that lost their end or their beginning: what is stored or new is delivered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import structlog
from confluent_kafka import KafkaError
from msgspec import structs

from connectors.kafka.clients import KAFKA
from connectors.kafka.source import KafkaSource
from delayservice.base.errors import LogTruncatedError
from delayservice.contract.contracts import Contract, Contracts
from delayservice.engine.checkpoint import NOTHING_READ, RANGES_MAX, LastRead, Lost, skipped
from delayservice.engine.cursor import Cursor
from delayservice.engine.outcome import DELIVERED
from delayservice.engine.ports import Bounds, PolledBatch
from delayservice.slices.store_label import Label
from delayservice.store.base import Store
from delayservice.store.memory import MemoryStore
from tests.rocks import LoneRocks
from tests.unit.lanes import TOPIC, QuietSource, lane_of, log_moved, routes_of
from tests.wheels import LoneStore

PLACE = (TOPIC, 0)
WRITTEN_MS = 1_000_000
DUE_MS = WRITTEN_MS + 1_000
OLD, NEW = 3, 5
"""Leader epochs."""


class Log(QuietSource):
    """A partition and its reader. ``epochs``: of the leader that appended each offset."""

    def __init__(self, epochs: Sequence[int], store: Store | None = None) -> None:
        super().__init__()
        self.epochs = list(epochs)
        self.leader_epoch = self.epochs[-1]
        self.start = 0
        store = store or MemoryStore()
        self.lane = lane_of(store, self, routes_of())
        self.lane.adopt(Contracts([(0, Contract())]))

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.start, len(self.epochs), self.leader_epoch)

    def truncate(self, stop: int, end: int) -> None:
        """The end is lost, and another leader has written as far as ``end``."""
        self.epochs[stop:] = [NEW] * (end - stop)
        self.leader_epoch = NEW

    def read(self) -> None:
        """Read to the end, as the loop does: whatever the lane seeks."""
        done = -1
        while done < len(self.seeks) or self.lane._fetch.position < len(self.epochs):
            at, done = self.lane._fetch.position, len(self.seeks)
            epoch, last = self.seeks[-1][1]
            if at == self.seeks[-1][0] and epoch >= 0 and self._end_of(epoch) <= last:
                log_moved(self.lane, self.bounds, is_truncated=True)  # the client has checked it
                done = -1
                continue
            epochs = self.epochs[at:]
            count = next((n for n, one in enumerate(epochs) if one != epochs[0]), len(epochs))
            rows = [_row(n, epochs[0]) for n in range(at, at + count)]
            try:
                self.lane.ingest(
                    PolledBatch(PLACE, at, rows, at + count, epochs[0] if epochs else -1)
                )
            except LogTruncatedError as exc:
                log_moved(self.lane, self.bounds, is_truncated=exc.is_stored)
                done = -1

    def _end_of(self, epoch: int) -> int:
        """What a broker says: where the first later epoch begins, or the log ends."""
        later = (n for n, one in enumerate(self.epochs) if one > epoch)
        return next(later, len(self.epochs))

    def settle(self, now_ms: int = DUE_MS) -> list[tuple[int, int]]:
        """What is delivered and committed now: offsets, and the epochs of their leaders."""
        outputs = self.lane.settle_late(now_ms, 1_000, lambda: True)
        for chunk in self.lane.settle_due(now_ms, 1_000, 1 << 20):
            outputs += chunk
        assert all(output[0] == DELIVERED for output in outputs)
        self.lane.committed()
        return sorted((output[7], int(output[4] or b"")) for output in outputs)


def _row(offset: int, epoch: int) -> Any:
    headers = [("delay-at", b"%d" % DUE_MS), ("delay-target-topic", b"orders")]
    return (offset, WRITTEN_MS, None, b"%d" % epoch, headers)


def owner_of(log: Log, settled: bool = True) -> Log:  # noqa: FBT001, FBT002  # a parameter of tests
    log.lane.take_over(Cursor(), log.bounds)
    log.read()
    if settled:
        assert log.settle() == [(offset, OLD) for offset in range(len(log.epochs))]
    return log


@pytest.mark.parametrize("end", [8, 10, 14])
def test_a_new_owner_that_has_read_the_old_log_asks_before_it_settles(end: int) -> None:
    before = owner_of(Log([OLD] * 10))
    checkpoint = before.lane.checkpoint()
    log = Log([OLD] * 10)
    log.lane.follow(Cursor())
    log.read()
    log.truncate(4, end)
    log.lane.take_over(checkpoint.cursor, log.bounds, checkpoint.last_read)
    assert log.settle() == []
    log.read()
    assert log.settle() == [(offset, NEW) for offset in range(4, end)]


def test_a_log_cut_before_the_first_fetch_is_noticed_below_s() -> None:
    # The position H is assigned without an epoch, so the client can't compare it.
    checkpoint = owner_of(Log([OLD] * 6)).lane.checkpoint()
    log = Log([OLD] * 10)
    log.lane.follow(Cursor())
    log.read()
    log.lane.take_over(checkpoint.cursor, log.bounds, checkpoint.last_read)
    assert log.seeks[-1] == (6, NOTHING_READ)
    rows = [_row(offset, NEW) for offset in range(6, 12)]
    with pytest.raises(LogTruncatedError, match="offset 6 was written after it had been stored"):
        log.lane.ingest(PolledBatch(PLACE, 6, rows, 12, NEW))


def test_it_begins_right_behind_what_it_read_last_so_that_the_client_asks_for_it() -> None:
    log = owner_of(Log([OLD] * 10))
    log.lane.step_down()
    assert log.seeks[-1] == (10, LastRead(OLD, 9))


# --- the client ---------------------------------------------------------------------------------


class Message:
    def __init__(
        self, offset: int | None, epoch: int | None, error: KafkaError | None = None
    ) -> None:
        self._offset, self._epoch, self._error = offset, epoch, error

    def topic(self) -> str:
        return PLACE[0]

    def partition(self) -> int:
        return PLACE[1]

    def offset(self) -> int | None:
        return self._offset

    def error(self) -> KafkaError | None:
        return self._error

    def leader_epoch(self) -> int | None:
        return self._epoch

    def timestamp(self) -> tuple[int, int]:
        return (2, WRITTEN_MS)

    def key(self) -> None: ...

    def value(self) -> None: ...

    def headers(self) -> None: ...


class Consumer:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.assigned: list[Any] = []

    def incremental_assign(self, partitions: Sequence[Any]) -> None:
        self.assigned += partitions

    def incremental_unassign(self, _partitions: Sequence[Any]) -> None: ...

    def poll(self, _timeout: float) -> Message | None:
        return self.messages.pop(0) if self.messages else None

    def consume(self, _count: int, _timeout: float) -> list[Message]:
        taken, self.messages = self.messages, []
        return taken


def source() -> tuple[KafkaSource, Consumer, Consumer]:
    """A source, with its consumers at the head and behind."""
    made: list[Consumer] = []

    def consumer(_options: object) -> Any:
        made.append(Consumer())
        return made[-1]

    clients = replace(KAFKA, consumer=consumer)
    reader = KafkaSource({}, cast("Any", None), "n1", clients=clients)
    head, behind = made
    return reader, head, behind


def _ended(offset: int) -> Message:
    return Message(offset, None, KafkaError(KafkaError._PARTITION_EOF))


def test_a_run_holds_records_of_one_leader_epoch() -> None:
    made, _, behind = source()
    made.seek(PLACE, 0)
    behind.messages = [Message(n, OLD if n < 3 else NEW) for n in range(5)]
    runs = [(run.start, len(run.rows), run.stop, run.leader_epoch) for run in made.poll(0, 100)]
    assert runs == [(0, 3, 3, OLD), (3, 2, 5, NEW)]


def test_an_epoch_that_the_client_does_not_know_is_none() -> None:
    made, _, behind = source()
    made.seek(PLACE, 0)
    behind.messages = [Message(0, None)]
    assert [run.leader_epoch for run in made.poll(0, 100)] == [-1]


def test_a_position_is_assigned_with_the_last_record_below_it() -> None:
    made, head, behind = source()
    made.seek(PLACE, 7, LastRead(OLD, 4))
    assert (behind.assigned[0].offset, behind.assigned[0].leader_epoch) == (5, OLD)
    behind.messages = [Message(7, NEW), _ended(9)]  # what lies at 8 is a marker
    assert [(run.start, run.stop) for run in made.poll(0, 100)] == [(7, 9)]
    assert (head.assigned[0].offset, head.assigned[0].leader_epoch) == (8, NEW)


def test_a_position_above_which_records_were_read_is_assigned_as_it_is() -> None:
    made, _, behind = source()
    made.seek(PLACE, 3, LastRead(OLD, 4))
    assert behind.assigned[0].offset == 3


@pytest.mark.parametrize(("why", "is_truncated"), [("", True), ("Broker: out of range", False)])
def test_a_truncation_is_told_from_other_lost_positions(why: str, *, is_truncated: bool) -> None:
    made, _, behind = source()
    made.seek(PLACE, 7)
    why = why or KafkaError(KafkaError._LOG_TRUNCATION).str()
    behind.messages = [Message(7, None, KafkaError(KafkaError._AUTO_OFFSET_RESET, why))]
    made.poll(0, 100)
    assert [(t.has_moved, t.is_truncated) for t in made.take_errors()] == [(True, is_truncated)]


@pytest.mark.parametrize(("offset", "is_told"), [(2, False), (5, True), (9, True), (None, True)])
def test_an_error_from_before_a_seek_is_ignored(offset: int | None, *, is_told: bool) -> None:
    made, _, behind = source()
    made.seek(PLACE, 2)
    made.seek(PLACE, 7, LastRead(OLD, 4))
    behind.messages = [Message(offset, None, KafkaError(KafkaError._AUTO_OFFSET_RESET))]
    made.poll(0, 100)
    assert bool(made.take_errors()) == is_told
    made.drop(PLACE)
    made.seek(("delay_topic_more", 0), 0)
    behind.messages = [Message(offset, None, KafkaError(KafkaError._AUTO_OFFSET_RESET))]
    made.poll(0, 100)
    assert not made.take_errors(), "it is not read any more"


class KeptStore(MemoryStore):
    """As after a restart: what it holds is there when it is opened again."""

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def open(self) -> int:
        return self.sync()


def test_a_position_is_proved_only_by_a_record_with_no_other_in_between() -> None:
    store = KeptStore()
    owner_of(Log([OLD] * 6, store), settled=False)
    label = structs.replace(Label.decode(store.label), last=NOTHING_READ, read_to=0, epochs=())
    store.set_label(label.encode())  # as of a version that did not note it
    log = Log([OLD] * 8, store)
    log.lane.take_over(Cursor(), log.bounds)
    assert log.seeks == [(0, NOTHING_READ)]
    log.lane.ingest(PolledBatch(PLACE, 0, [_row(offset, OLD) for offset in range(3)], 3, OLD))
    log.lane.step_down()
    assert log.seeks[-1] == (6, NOTHING_READ), "offset 2 says nothing of 3 to 5"
    log.read()
    log.lane.ingest(PolledBatch(PLACE, 8, [], 9, OLD))  # a transaction's marker
    log.lane.step_down()
    assert log.seeks[-1] == (9, LastRead(OLD, 7))


def crashed(later: int) -> MemoryStore:
    """A store whose label names offset 5 of ten records, the rest of which are of epoch ``later``;
    the label was not written again before the crash, unless the leader had changed.
    """
    store = KeptStore()
    log = Log([OLD] * 6, store)
    log.lane.follow(Cursor())
    log.read()
    log.lane.sync_soon()
    log.lane.ingest(
        PolledBatch(PLACE, 6, [_row(offset, later) for offset in range(6, 10)], 10, later)
    )
    assert log.lane.shard.stored == 10
    return store


@pytest.mark.parametrize("is_replica_first", [True, False])
def test_records_stored_after_the_label_are_proved_after_a_crash(*, is_replica_first: bool) -> None:
    log = Log([*[OLD] * 8, *[NEW] * 6], crashed(OLD))
    if is_replica_first:
        log.lane.follow(Cursor())
        log.read()
    log.lane.take_over(Cursor(), log.bounds)
    assert is_replica_first or log.settle() == [], "it is not known yet"
    log.read()
    assert log.settle() == [*((n, OLD) for n in range(8)), *((n, NEW) for n in range(8, 14))]


@pytest.mark.parametrize("later", [OLD, NEW])
def test_after_a_crash_a_log_that_was_not_truncated_keeps_its_store(later: int) -> None:
    log = Log([*[OLD] * 6, *[later] * 4, *[NEW + 1] * 3], crashed(later))
    with structlog.testing.capture_logs() as logs:
        log.lane.follow(Cursor())
        log.read()
        assert min(offset for offset, _ in log.seeks) >= 5, "only what is not proved is read"
        log.lane.take_over(Cursor(), log.bounds)
        log.read()
    assert logs == []
    assert len(log.settle()) == 13


@pytest.mark.parametrize("later", [OLD, NEW])
def test_a_store_is_proved_though_retention_deleted_its_last_record(later: int) -> None:
    store = crashed(OLD)
    log = Log([*[OLD] * 8, *[later] * 4], store)
    log.start, log.leader_epoch = 8, NEW
    log.lane.take_over(Cursor(), log.bounds)
    assert log.seeks[-1] == (10, LastRead(OLD, 9)), "the label names offset 5"
    assert log.settle() == [], "8 and 9 are not proved"
    log.read()
    kept = [(offset, OLD) for offset in range(8)] if later == OLD else []
    assert log.settle() + log.settle() == [*kept, *((n, later) for n in range(8, 12))]


def test_a_position_is_no_longer_proved_by_a_record_that_retention_has_deleted() -> None:
    log = owner_of(Log([OLD] * 10))
    log.lane.ingest(PolledBatch(PLACE, 10, [], 12, OLD))  # transaction markers
    log.epochs += [OLD] * 2
    log.start = 12
    log_moved(log.lane, log.bounds)
    assert log.seeks[-1] == (12, NOTHING_READ)
    before = len(log.seeks)
    log_moved(log.lane, log.bounds)
    assert set(log.seeks[before:]) == {(12, NOTHING_READ)}


def test_under_the_same_leader_nothing_is_read_again() -> None:
    checkpoint = owner_of(Log([OLD] * 10)).lane.checkpoint()
    log = Log([OLD] * 10)
    log.lane.follow(Cursor())
    log.read()
    before = len(log.seeks)
    log.lane.take_over(checkpoint.cursor, log.bounds, checkpoint.last_read)
    assert len(log.seeks) == before


# --- retention deleted what was not read or not settled -------------------------------------------


MakeStore = Callable[[], Store]


@pytest.fixture(params=[LoneStore, LoneRocks])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    return lambda: cast("Store", request.param(tmp_path / "shard"))


def stored(make_store: MakeStore) -> None:
    """Let a replica store two records and be closed."""
    log = Log([OLD] * 2, make_store())
    log.lane.follow(Cursor())
    log.read()
    log.lane.close()


def test_h_skips_lost_offsets_before_k_goes_on(make_store: MakeStore) -> None:
    stored(make_store)
    log = Log([OLD] * 9, make_store())
    log.start = 4
    log.lane.take_over(Cursor(), log.bounds)
    assert list(log.lane.settle_due(DUE_MS, 1_000, 1 << 20)) == []
    assert log.settle() + log.settle() == [(0, OLD), (1, OLD)]
    assert (log.lane.shard.committed.offset, log.lane.shard.stored) == (4, 4)


def test_a_store_says_of_which_log_it_is(make_store: MakeStore) -> None:
    stored(make_store)
    again = Log([OLD] * 2, make_store())
    again.lane.follow(Cursor())
    assert again.seeks == [(2, LastRead(OLD, 1))]
    again.epochs.append(OLD)
    again.read()
    again.lane.store.sync()  # as a crash leaves it: the label is older than what is stored
    again.lane.store.close()
    crashed = Log([OLD] * 3, make_store())
    crashed.lane.follow(Cursor())
    assert crashed.seeks == [(3, LastRead(OLD, 2))], "the client checks all of it"


def test_a_range_that_was_not_walked_to_its_end_goes_over_to_the_next_owner() -> None:
    ranges = skipped((), h=80, log_start=200)
    assert ranges == (Lost(80, 200),)
    assert skipped(ranges, h=200, log_start=200) == ranges
    assert skipped(ranges, h=80, log_start=220) == (Lost(80, 220),)
    assert skipped(ranges, h=150, log_start=220) == (Lost(80, 150), Lost(150, 220, before=70))


def test_all_lost_offsets_are_counted_also_of_ranges_that_are_dropped() -> None:
    ranges = skipped((), h=0, log_start=1_000_000)
    for start in range(2_000_000, 2_000_000 + 100 * RANGES_MAX, 100):
        before, ranges = ranges[-1].in_all, skipped(ranges, h=start, log_start=start + 10)
        assert ranges[-1].in_all == before + 10
    assert Lost(0, 1_000_000) not in ranges
    first = ranges[0]
    again = skipped(ranges, h=first.first, log_start=first.stop)
    assert again == (first,), "what is skipped again counts once"
