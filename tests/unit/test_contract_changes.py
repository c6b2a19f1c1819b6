"""A change of settings: from which record on it holds, and what it takes in a checkpoint."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from delayservice.contract.contracts import Contract, Contracts
from delayservice.engine.checkpoint import Checkpoint, ShardCheckpoint, encode_checkpoint
from delayservice.engine.claims import Tenure
from delayservice.engine.cursor import Cursor
from delayservice.engine.ports import Bounds
from delayservice.slices.lane import Lane
from delayservice.slices.take_over import CONTRACTS_BYTES_MAX, take_over_lane
from delayservice.store.memory import MemoryStore
from tests.unit.lanes import TOPIC, QuietSource, lane_of, routes_of
from tests.unit.test_lane_label import START_MS, read, run

BATCH_BYTES_MAX = 1_000_000
"""About what a broker takes by default."""
LATER_MS = START_MS + 10**9
"""When nothing was written for long."""


def new_lane() -> Lane:
    made = lane_of(MemoryStore(), QuietSource(), routes_of(1, 1_000))
    made.follow(Cursor())
    return made


@pytest.fixture
def lane() -> Lane:
    return new_lane()


def changed(number: int) -> Contract:
    return Contract(max_delay_ms=10**9 + number)


def change(lane: Lane, number: int, log_start: int) -> int:
    """Take over with other settings after one more record; the size of the checkpoint."""
    known = None
    if number:
        read(lane, number)
        known = ShardCheckpoint("id", Cursor(offset=number), lane.contracts)
    take_over_lane(lane, known, Bounds(log_start, number), changed(number), LATER_MS)
    shards = {TOPIC: lane.checkpoint()}
    return len(encode_checkpoint(Checkpoint(0, "node", 1, "secret", shards, 1, Tenure("w", 0))))


def test_contracts_whose_records_the_log_has_lost_are_dropped(lane: Lane) -> None:
    sizes = [change(lane, number, max(0, number - 10)) for number in range(3_000)]
    assert len(lane.contracts.entries()) == 11
    assert max(sizes) < 10_000
    assert lane.contracts.at(2_999) == changed(2_999)
    assert lane.contracts.at(2_990) == changed(2_990)


def test_a_store_outlives_the_contracts_that_are_dropped(lane: Lane) -> None:
    for number in range(20):
        change(lane, number, 0)
    stored = lane.store.stats().pending
    change(lane, 20, 12)
    assert lane.contracts.entries()[0] == (12, changed(12))
    assert lane.store.stats().pending == stored + 1


def test_changes_that_the_checkpoint_has_no_room_for_wait_until_it_has(lane: Lane) -> None:
    with capture_logs() as logged:
        sizes = [change(lane, number, 0) for number in range(3_000)]
    assert max(sizes) < CONTRACTS_BYTES_MAX + 1_000 < BATCH_BYTES_MAX
    (deferred, *_) = [line for line in logged if line["event"] == "contract_deferred"]
    assert deferred["contracts"] == len(lane.contracts.entries()) > 100
    last = lane.contracts.entries()[-1]
    assert last[1] == changed(last[0])
    change(lane, 3_000, last[0])  # retention has deleted the records of all but the last
    assert lane.contracts.entries() == (last, (3_000, changed(3_000)))


def test_contracts_that_are_too_many_by_now_stay_as_they_are(lane: Lane) -> None:
    # An older service wrote them; records need each.
    many = Contracts([(number, changed(number)) for number in range(1_000)])
    assert len(many.encode()) > CONTRACTS_BYTES_MAX
    known = ShardCheckpoint("id", Cursor(), many)
    take_over_lane(lane, known, Bounds(0, 1_000), changed(999), LATER_MS)
    assert lane.contracts == many


def test_replicas_that_hear_of_a_change_under_load_keep_their_stores() -> None:
    # They store on meanwhile by what held before.
    owner, replica = new_lane(), new_lane()
    before = Contracts([(0, changed(1))])
    for lane in (owner, replica):
        lane.adopt(before)
        lane.follow(Cursor())
        lane.ingest(run(0, 3_000))  # a record each millisecond
    known = ShardCheckpoint("id", Cursor(offset=3_000), before)
    replica.ingest(run(3_000, 5_500))
    with capture_logs() as logged:
        take_over_lane(owner, known, Bounds(0, 3_000), changed(2), START_MS + 3_000)
        replica.adopt(owner.contracts)
    assert replica.shard.stored == 5_500
    assert [line["event"] for line in logged] == ["contract_extended"]
    assert owner.contracts.entries() == ((0, changed(1)), (6_000, changed(2)))
    owner.ingest(run(3_000, 7_000))
    replica.ingest(run(5_500, 7_000))
    assert owner.store.stats().pending == replica.store.stats().pending == 7_000


def test_a_change_of_a_log_that_rests_holds_from_its_end_on(lane: Lane) -> None:
    lane.adopt(Contracts([(0, changed(1))]))
    lane.follow(Cursor())
    lane.ingest(run(0, 3_000))
    known = ShardCheckpoint("id", Cursor(), lane.contracts)
    take_over_lane(lane, known, Bounds(0, 3_000), changed(2), LATER_MS)
    assert lane.contracts.entries()[1] == (3_000, changed(2))
