"""One loop, one writer, many slices: what a transaction carries, and what an end of it means."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from structlog.testing import capture_logs

from delayservice.base.errors import (
    KafkaEdgeError,
    OwnershipLostError,
    SlotDamagedError,
    WriterEndedError,
)
from delayservice.contract.contracts import PARAMETERS, Contract, Contracts
from delayservice.contract.cron import cron_time
from delayservice.contract.entry import OFFSET_MAX
from delayservice.contract.times import DUE_STOP_MS
from delayservice.engine import outcome
from delayservice.engine.checkpoint import (
    Checkpoint,
    ShardCheckpoint,
    encode_checkpoint,
    fingerprint,
)
from delayservice.engine.claims import CLAIM, Tenure, encode_key, encode_word
from delayservice.engine.cursor import Cursor, Frame, Key
from delayservice.engine.ports import (
    Bounds,
    Control,
    PartitionError,
    Place,
    PolledBatch,
    Role,
    Source,
)
from delayservice.slices.edges import Limits
from delayservice.slices.ingest import store
from delayservice.slices.lane import Lane
from delayservice.slices.log_reading import RecordWanted
from delayservice.slices.slice import Phase, Slice
from delayservice.slices.state import Commit
from delayservice.slices.take_over import grouped
from delayservice.store.memory import MemoryStore
from tests.unit import loop_stage
from tests.unit.lanes import window_of
from tests.unit.loop_stage import NOW_MS, ROUTES, STEP_MS, TOPIC, Inline, Stage

LITTLE = Limits(transaction_records=1_000, transaction_interval_ms_min=STEP_MS - 1)
SECRET = fingerprint(ROUTES.secret)
FIRST = Contracts([(0, Contract())])


def left_by(
    writer: str,
    claim: int,
    number: int = 0,
    contracts: Contracts = FIRST,
    signed_by: str = SECRET,
    topics: Sequence[str] = (TOPIC, "delay_topic_elsewhere"),
) -> bytes:
    shards = {name: ShardCheckpoint(name, Cursor(), contracts) for name in topics}
    return encode_checkpoint(
        Checkpoint(number, "n2", 40, signed_by, shards, 9, Tenure(writer, claim))
    )


def claimed_by_old(stage: Stage, number: int = 0) -> None:
    """Let another worker have claimed the slice."""
    word = encode_word(number, "old", "n2", CLAIM, 0)
    stage.sink.claims.append((encode_key(number, "old"), word))


def taking_over(stage: Stage) -> None:
    """Let slice 0 be claimed, and the take-over wait in the background."""
    stage.background.holds = True
    stage.gate.says(Role.OWNER, [0])
    for _ in range(2):  # the writer is opened, the claim is committed
        stage.step(10)
        stage.background.run()
    stage.step(10)
    assert stage.of(0).phase is Phase.TAKING


def test_a_commit_that_has_ended_is_freed_without_a_collection_of_cycles() -> None:
    """For what is under way when the worker collects is excluded from later collections."""
    stage = Stage(0)
    stage.own()
    stage.background.holds = True
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            stage.loop.state.transaction.rewritten.add(0)
            stage.step(STEP_MS)
            stage.background.run()
            stage.step()
        assert sum(isinstance(one, Commit) for one in gc.get_objects()) == 1
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("setbacks", "sizes"),
    [
        ([0] * 6, [6]),
        ([0] * 3 + [1] * 6, [3, *[1] * 6]),
        ([1] * 1_000, [125] * 8),
        ([2] * 1_000, [*[63] * 15, 55]),
        ([0] * 5_000, [4_096, 904]),
    ],
)
def test_slices_whose_take_over_failed_are_taken_over_in_parts(
    setbacks: list[int], sizes: list[int]
) -> None:
    """So that one that can't be taken over soon fails alone."""
    slices = [cast("Slice", SimpleNamespace(setbacks=one)) for one in setbacks]
    assert [len(group) for group in grouped(slices)] == sizes


# --- contracts ----------------------------------------------------------------------------------


def newest_contract(stage: Stage) -> Contract:
    return stage.sink.checkpoint(0).shards[TOPIC].contracts.entries()[-1][1]


@pytest.fixture(autouse=True)
def a_next_contract_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PARAMETERS, 2, PARAMETERS[1])


@pytest.mark.parametrize("version", [1, 2])
def test_an_owner_begins_a_contract_of_a_version_that_all_live_nodes_know(version: int) -> None:
    stage = Stage(0)
    stage.gate.version = version
    stage.own()
    assert newest_contract(stage).version == version


def test_an_owner_does_not_go_back_behind_a_version_that_the_checkpoint_has() -> None:
    stage = Stage(0)
    claimed_by_old(stage)
    stage.sink.note_checkpoint(0, left_by("old", 0, contracts=Contracts([(0, Contract(2))])))
    stage.gate.version = 1
    stage.own()
    assert newest_contract(stage).version == 2


# --- one transaction ----------------------------------------------------------------------------


def test_a_burst_on_one_shard_leaves_the_others_their_share_of_the_transaction() -> None:
    stage = Stage(0, 1, 2, 3, limits=LITTLE)
    stage.own()
    stage.write(0, *[0] * 3_500)
    for number in (1, 2, 3):
        stage.write(number, *[0] * 10)
    stage.turn(10)
    counts = Counter(number for number, _ in stage.delivered())
    assert [counts[number] for number in (1, 2, 3)] == [10, 10, 10]
    assert 960 <= counts[0] <= 1_000, "what the others left over is not wasted"
    stage.step(10, 10)
    assert sorted(stage.delivered()) == sorted(
        [(0, offset) for offset in range(3_500)]
        + [(number, offset) for number in (1, 2, 3) for offset in range(10)]
    )


def test_slow_cron_searches_hold_up_no_other_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(cron: str, zone: str, after_ms: int) -> int | None:
        stage.clock.now_ms += 10
        return cron_time(cron, zone, after_ms)

    monkeypatch.setattr(loop_stage, "ROUTES", replace(loop_stage.ROUTES, cron_time=slow))
    stage = Stage(0, 1)
    stage.own()
    began_ms = stage.clock.now_ms
    stage.write(0, *[0] * 300, headers=[("delay-cron", b"0 9 1 1 *")])
    stage.write(1, *[0] * 10)
    stage.turn(10)
    assert stage.clock.now_ms - began_ms < 100
    stage.step(10, 2)
    assert len(stage.delivered()) == 10
    stage.step(10, 100)
    schedules = [output for place, output in stage.sink.sent() if place[1] == 0]
    assert [output[0] for output in schedules] == [outcome.ROLLED] * 300


def test_one_commit_carries_the_changes_of_several_slices() -> None:
    stage = Stage(0, 1, 2)
    stage.gate.says(Role.OWNER, [0, 1])
    stage.step(10, 4)
    commits = len(stage.sink.committed)
    stage.write(0, 0)
    stage.gate.says(Role.REPLICA, [1])
    stage.gate.says(Role.OWNER, [2])
    stage.turn(10)
    (both,) = stage.sink.committed[commits:]
    assert sorted(both.words) == [(1, "release"), (2, "claim")]
    assert both.checkpoints == [0]
    assert [(place[1], output[7]) for place, output in both.outputs] == [(0, 0)]


def test_a_slice_with_nothing_to_commit_is_passed_over_once_not_in_each_turn() -> None:
    stage = Stage(*range(5))
    stage.own()
    stage.loop.state.transaction.touched |= set(range(5))  # something happened, and came to nothing
    stage.step(10)
    assert not stage.loop.state.transaction.touched
    stage.write(3, 0)
    stage.step(10, 2)
    assert stage.delivered() == [(3, 0)]


def test_slices_without_news_are_looked_after_in_turn() -> None:
    stage = Stage(*range(12))
    stage.step(1_000)  # they are new
    stage.loop.take_tended()
    stage.step(1_000)
    tended = stage.loop.take_tended()
    assert len(tended) == 3
    stage.step(1_000, 3)
    tended += stage.loop.take_tended()
    assert Counter(slice_.number for slice_ in tended) == Counter(range(12))


# --- aborted ------------------------------------------------------------------------------------


def test_only_the_refused_record_of_a_transaction_is_dead_lettered() -> None:
    stage = Stage(0, 1)
    stage.own()
    stage.write(0, 0, 0, 0)
    stage.write(1, 0)
    refused = {((TOPIC, 0), 1): ("too-large", "more than it takes")}
    stage.sink.refuses_to["commit"] = WriterEndedError("refused", refused)
    stage.step(10, 6)
    kinds = {(place[1], output[7]): output[0] for place, output in stage.sink.sent()}
    assert kinds == {
        (0, 0): outcome.DELIVERED,
        (0, 1): outcome.DEAD_LETTERED,
        (0, 2): outcome.DELIVERED,
        (1, 0): outcome.DELIVERED,
    }


def test_a_slice_that_cannot_commit_is_left_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(0, 1)
    stage.own()
    stage.write(0, 0)
    commit = stage.sink.commit

    def refuse_outputs(controls: Sequence[Control]) -> None:
        if stage.sink.open_outputs:
            stage.sink.open_outputs.clear()
            raise WriterEndedError("not acknowledged")
        commit(controls)

    monkeypatch.setattr(stage.sink, "commit", refuse_outputs)
    while not stage.gate.given_up:
        stage.step(50)
    assert stage.gate.given_up == [(0, "not acknowledged")]
    assert len(stage.sink.opened) == 4


@pytest.mark.parametrize("call", ["check", "commit"])
def test_a_writer_that_has_ended_is_replaced_at_once_and_counts_as_no_loss(call: str) -> None:
    stage = Stage(0, 1)
    stage.own()
    for number in range(5):
        stage.write(0, 0)
        stage.sink.refuses_to[call] = WriterEndedError("an abort, or a failed connection")
        stage.step(10, 7)
        assert stage.gate.served == {0, 1}
        assert stage.delivered() == [(0, offset) for offset in range(number + 1)]
    assert len(stage.sink.opened) == 6
    assert not stage.gate.given_up


# --- lost ---------------------------------------------------------------------------------------


def test_a_fenced_owner_stores_by_the_next_owners_contracts() -> None:
    stage = Stage(0)
    stage.own()
    contracts = Contracts([(0, Contract(2))])
    stage.sink.note_checkpoint(0, left_by("w9", 9, contracts=contracts))
    stage.step(1_000)
    assert stage.lane(0).contracts != contracts, "it does not know yet that it is fenced"
    stage.gate.says(Role.REPLICA, [0])
    stage.sink.refuses_to["commit"] = OwnershipLostError("fenced")
    stage.step(10, 2)
    assert not stage.lane(0).shard.owned
    assert stage.lane(0).contracts == contracts


def test_contracts_that_were_never_committed_end_with_the_take_over() -> None:
    stage = Stage(0)
    stage.write(0, 0, 0)
    claimed_by_old(stage)
    contracts = Contracts([(0, Contract(roll_window_ms=60_000))])
    stage.sink.note_checkpoint(0, left_by("old", 0, contracts=contracts))
    fenced = OwnershipLostError("fenced")
    stage.heritage.while_fencing = lambda: stage.sink.refuses_to.update(commit=fenced)
    stage.gate.says(Role.OWNER, [0])
    with capture_logs() as told:
        while not stage.sink.discarded:
            stage.step(10)
    assert "contract_extended" in [line["event"] for line in told]
    assert not stage.lane(0).shard.owned
    assert stage.lane(0).contracts == contracts
    stage.heritage.while_fencing = lambda: None
    stage.own()
    stage.gate.says(Role.REPLICA, [0])
    stage.sink.refuses_to["commit"] = OwnershipLostError("fenced")
    stage.step(10, 2)
    assert len(stage.lane(0).contracts.entries()) == 2, "committed, they hold on"


def test_three_lost_writers_in_a_row_give_up_the_slice() -> None:
    stage = Stage(0)
    stage.own()
    for _ in range(3):
        stage.write(0, 0)
        stage.sink.refuses_to["commit"] = OwnershipLostError("fenced")
        stage.step(500, 1)  # each new writer is opened after a longer pause
    assert stage.gate.given_up == [(0, "fenced")]


def test_writers_that_are_lost_one_after_another_are_opened_ever_more_slowly() -> None:
    stage = Stage(0)
    stage.own()
    for _ in range(1_000):
        stage.sink.refuses_to["commit"] = OwnershipLostError("fenced")
        stage.step(10)
    assert len(stage.sink.opened) <= 8, "of ten seconds"
    for _ in range(2_000):
        stage.loop.state.writer.count_loss()
    stage.step(5_000, 2)
    assert stage.loop.state.writer.name


# --- taking over --------------------------------------------------------------------------------


def test_a_claim_that_is_to_be_forgotten_is_still_to_be_after_an_abort() -> None:
    stage = Stage(0)
    claimed_by_old(stage)
    stage.own()
    assert stage.loop.state.transaction.forgettable
    stage.write(0, 0)
    stage.sink.refuses_to["commit"] = WriterEndedError("a target is slow")
    stage.step(10, 8)
    assert ([0], False) in stage.heard.transactions
    forgotten = [c for one in stage.sink.committed for c in one.controls if c.writer == "old"]
    assert [(c.slice_no, c.value) for c in forgotten] == [(0, None)]


def test_nothing_is_stored_or_claimed_of_a_slice_that_is_served_with_another_secret() -> None:
    stage = Stage(0, 1)
    for number in (0, 1):
        claimed_by_old(stage, number)
        stage.sink.note_checkpoint(number, left_by("old", number, number))
        stage.write(number, 60_000)
    stage.step(1_000, 2)
    assert [stage.lane(number).shard.stored for number in (0, 1)] == [1, 1]
    stage.sink.note_checkpoint(0, left_by("old", 0, signed_by="another"))
    stage.step(1_000, 2)
    for number in (0, 1):
        stage.write(number, 60_000)
    stage.step(1_000, 2)
    assert [stage.lane(number).shard.stored for number in (0, 1)] == [1, 2]
    assert stage.logs.paused == {(TOPIC, 0)}
    stage.sink.note_checkpoint(0, left_by("new", 1))
    stage.gate.says(Role.OWNER, [0, 1])
    stage.step(1_000, 4)
    assert [stage.of(number).is_owner for number in (0, 1)] == [False, True]
    assert {number for one in stage.sink.committed for number, _ in one.words} == {1}
    assert stage.lane(0).shard.stored == 1


def test_a_run_that_was_fetched_before_a_slice_was_refused_is_not_stored() -> None:
    stage = Stage(0)
    stage.sink.note_checkpoint(0, left_by("old", 0))
    stage.step(1_000)
    stage.sink.note_checkpoint(0, left_by("old", 0, signed_by="another"))
    stage.step(1_000)
    stage.write(0, 60_000)
    run = PolledBatch((TOPIC, 0), 0, stage.logs.rows[TOPIC, 0], 1)
    store(stage.loop.state, run)
    assert stage.lane(0).shard.stored == 0


def test_records_stored_during_a_log_end_query_are_not_truncated() -> None:
    stage = Stage(0)
    stage.write(0, 60_000, 60_000, 60_000)
    stage.step(10)
    stage.heritage.bounds = lambda places: dict.fromkeys(places, Bounds(0, 3))  # type: ignore[method-assign]
    taking_over(stage)
    stage.write(0, 60_000, 60_000, 60_000)
    stage.step(10)
    assert stage.lane(0).shard.stored == 6
    with capture_logs() as told:
        stage.background.run()
        stage.step(10)
    assert stage.lane(0).shard.owned
    assert [line for line in told if line["event"] == "log_truncated"] == []
    assert stage.lane(0).store.stats().pending == 6


def test_a_shard_replaced_during_a_take_over_goes_by_its_own_log() -> None:
    stage = Stage(0)
    bounds = stage.heritage.bounds
    stage.heritage.bounds = lambda places: dict.fromkeys(places, Bounds(7, 9))  # type: ignore[method-assign]
    taking_over(stage)
    assert stage.loop.drop_lane(0, TOPIC)
    stage.add(0)  # the topic was deleted and created again
    stage.write(0, 0)
    stage.background.run()
    stage.heritage.bounds = bounds  # type: ignore[method-assign]
    stage.background.holds = False
    stage.step(10)
    while stage.background.waiting:
        stage.background.run()
    stage.step(10, 6)
    assert stage.lane(0).shard.end == 1
    assert stage.delivered() == [(0, 0)]


def test_an_owner_that_rereads_its_store_does_not_wait_for_lost_records() -> None:
    stage = Stage(0, limits=Limits(poll_records=3, transaction_interval_ms_min=STEP_MS - 1))
    stage.write(0, *[60_000] * 6)
    stage.step(10, 3)
    stage.lane(0).shard._queue_max = 3
    stage.clock_watch.reason = "the clock is wrong"  # so H waits
    stage.own()
    stage.step(10)
    assert (stage.lane(0).shard.read, stage.lane(0).shard.stored) == (3, 6)
    del stage.logs.rows[TOPIC, 0][2:]
    stage.write(0, 0)
    stage.clock_watch.reason = None
    stage.step(1_000, 6)
    assert stage.delivered() == [(0, 2)]
    assert stage.lane(0).shard.stored == 3
    asked = stage.heritage.calls.count("bounds")
    stage.step(1_000, 6)
    assert stage.heritage.calls.count("bounds") == asked, "it waits for nothing any more"


def test_a_shard_with_a_silent_leader_holds_up_no_other() -> None:
    stage = Stage(0)
    stage.add(0, "delay_topic_slow")
    bounds = stage.heritage.bounds
    silent = {"delay_topic_slow"}
    stage.heritage.bounds = lambda places: bounds(  # type: ignore[method-assign]
        {p: places[p] for p in places if p[0] not in silent}
    )
    stage.logs.write(("delay_topic_slow", 0), stage.clock.now_ms, [0])
    stage.write(0, 0)
    stage.background.holds = True
    stage.gate.says(Role.OWNER, [0])
    for _ in range(12):
        if stage.background.waiting:
            stage.background.run()
        stage.step(10)
    assert stage.delivered() == [(0, 0)]
    assert [place[0] for place, _ in stage.sink.sent()] == [TOPIC]
    asked = stage.heritage.calls.count("bounds")
    assert asked == 2, "at the take-over and once more; then not before a moment has passed"
    silent.clear()
    stage.clock.now_ms += 1_000
    for _ in range(6):
        stage.step(10)
        if stage.background.waiting:
            stage.background.run()
    assert sorted(place[0] for place, _ in stage.sink.sent()) == [TOPIC, "delay_topic_slow"]


# --- homes of ids -------------------------------------------------------------------------------


def id_partitions(stage: Stage, number: int) -> int:
    return stage.sink.checkpoint(number).shards[TOPIC].contracts.id_partitions


def test_shards_go_by_the_partitions_that_the_committed_contract_of_partition_0_counts() -> None:
    counts = iter(range(3, 9))
    stage = Stage(0, 1, 2, partitions_of=lambda _: next(counts))
    stage.gate.says(Role.OWNER, range(3))
    stage.step(10, 8)
    with_checkpoints = [one.checkpoints for one in stage.sink.committed if one.checkpoints]
    assert with_checkpoints == [[0], [1, 2]]
    assert [id_partitions(stage, number) for number in range(3)] == [3, 3, 3]


def test_a_shard_waits_for_partition_0_and_holds_up_no_other() -> None:
    stage = Stage(1, partitions_of=lambda _: 8)
    stage.add(1, "delay_topic_elsewhere")
    claimed_by_old(stage, 1)
    stage.sink.note_checkpoint(1, left_by("old", 0, 1, topics=["delay_topic_elsewhere"]))
    stage.write(1, 0)
    stage.own()
    assert stage.of(1).alarm == "", "nearly always it is there soon"
    stage.step(1_000, 3)
    assert stage.lane(1, "delay_topic_elsewhere").shard.owned
    assert not stage.lane(1).shard.owned
    assert stage.of(1).alarm == f"{TOPIC}:1 is served as soon as partition 0 of this topic is"
    left = left_by("w9", 9, contracts=Contracts([(0, Contract(id_partitions=4))]))
    of_before = left.replace(b'"topic_id":"%s"' % TOPIC.encode(), b'"topic_id":"deleted"')
    stage.sink.note_checkpoint(0, of_before)
    stage.step(1_000, 2)
    assert not stage.lane(1).shard.owned, "a topic that was made again counts anew"
    stage.sink.note_checkpoint(0, left)
    stage.step(10, 6)
    assert stage.of(1).alarm == ""
    assert id_partitions(stage, 1) == 4, "as many as there were when partition 0 was served first"
    assert stage.delivered() == [(1, 0)]


# --- letting go ---------------------------------------------------------------------------------


def test_a_slice_that_is_to_be_kept_no_longer_is_released_before_it_is_dropped() -> None:
    stage = Stage(0, 1)
    stage.own()
    assert not stage.loop.drop_slice(0)
    stage.gate.says(Role.REPLICA, [0])
    stage.step(10)
    assert stage.sink.committed[-1].words == [(0, "release")]
    assert stage.loop.drop_slice(0)
    assert list(stage.loop.slices) == [1]
    stage.write(1, 0)
    stage.step(10)
    assert stage.delivered() == [(1, 0)]


def test_at_the_end_all_slices_are_released_in_one_commit() -> None:
    stage = Stage(*range(5))
    stage.own()
    stage.write(2, 0)
    stage.step(1)
    stage.gate.says(Role.REPLICA, range(5))
    stage.loop.release_all()
    stage.step(1)
    assert stage.sink.committed[-1].words == [(number, "release") for number in range(5)]
    assert not stage.loop.is_settling
    assert stage.delivered() == [(2, 0)]
    stage.loop.close()
    assert stage.sink.discarded == 1


def test_a_worker_that_leaves_claims_nothing_again_although_it_is_to_own_everything() -> None:
    # A node that runs alone is told to own everything for as long as it is there.
    stage = Stage(0, 1)
    stage.own()
    stage.step(10)
    assert stage.gate.served == {0, 1}
    stage.background.holds = True
    for _ in range(5):
        stage.loop.release_all()
        stage.step(10)
        while stage.background.waiting:
            stage.background.run()
    assert not stage.loop.is_settling
    words = [word for one in stage.sink.committed[2:] for word in one.words]
    assert words == [(0, "release"), (1, "release")]


def test_a_slice_that_can_t_be_read_is_released_and_the_others_go_on() -> None:
    stage = Stage(0, 1)
    stage.own()
    lane = stage.lane(0)

    def fails(place: Place, start: int, stop: int) -> Iterator[PolledBatch]:
        raise KafkaEdgeError(f"no leader for {place[0]}, which has {start} to {stop}")

    def wants_its_log(_: PolledBatch) -> int:
        lane.log_wanted = RecordWanted((NOW_MS, 0))
        return 0

    stage.logs.scan = fails  # type: ignore[method-assign]
    lane.ingest = wants_its_log  # type: ignore[assignment, method-assign]
    stage.write(0, 0)
    stage.write(1, 0)
    stage.step(10, 2)
    why = f"no leader for {TOPIC}, which has 0 to 1"
    assert stage.gate.given_up[0] == (0, why)
    assert stage.of(0).trouble == why
    assert stage.delivered() == [(1, 0)]
    assert (0, "release") in [word for one in stage.sink.committed for word in one.words]
    stage.gate.says(Role.REPLICA, [0])
    lane.ingest = lambda _: 0  # type: ignore[assignment, method-assign]
    stage.step(1_000, 2)
    assert stage.of(0).trouble == why, "nobody serves it yet"
    stage.sink.note_checkpoint(0, left_by("another", len(stage.sink.claims)))
    stage.step(1_000, 2)
    assert stage.of(0).trouble == why, "its cause may be there still"
    stage.step(120_000, 2)
    assert stage.of(0).trouble == ""


def test_a_replica_that_reads_its_log_again_is_in_no_trouble() -> None:
    stage = Stage(0)
    stage.sink.note_checkpoint(0, left_by("old", 0))
    stage.step(1_000, 2)  # there is no other checkpoint
    lane, scan = stage.lane(0), stage.logs.scan
    failures = [KafkaEdgeError("a leader is being elected")]

    def scans(place: Place, start: int, stop: int) -> Iterator[PolledBatch]:
        if failures:
            raise failures.pop()
        return scan(place, start, stop)

    def wants_its_log(_: PolledBatch) -> int:
        lane.log_wanted = RecordWanted((NOW_MS, 0))
        return 0

    stage.logs.scan = scans  # type: ignore[method-assign]
    lane.ingest = wants_its_log  # type: ignore[assignment, method-assign]
    stage.write(0, 0)
    stage.step(10, 3)
    assert stage.gate.given_up == [(0, "a leader is being elected")]
    stage.step(120_000, 2)
    assert stage.of(0).trouble == ""


@pytest.mark.parametrize("level_ms", [0, 5_000])
def test_a_replica_that_can_t_ask_for_its_log_reads_on_unless_it_is_of_a_level(
    level_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    contract = Contract(level_ms=level_ms)
    monkeypatch.setattr(loop_stage, "contract_of", lambda *_: contract)
    stage = Stage()
    store = window_of() if level_ms else MemoryStore()
    lane = Lane(TOPIC, 0, TOPIC, store, cast("Source", stage.logs), ROUTES, stage.targets)
    lane.adopt(Contracts([(0, contract)]))
    stage.loop.add_lanes(0, [lane])
    if level_ms:
        stage.own()  # only an owner reads
    stage.write(0, 60_000)
    stage.step(10, 2)

    def fails(place: Place) -> Bounds:
        raise KafkaEdgeError(f"no leader for {place[0]}")

    stage.logs.bounds = fails  # type: ignore[method-assign]
    stage.logs.positions.clear()
    stage.logs.troubles.append(PartitionError(lane.place, "an offset is gone", has_moved=True))
    stage.gate.says(Role.REPLICA, [0])
    stage.step(10, 4)
    assert stage.gate.given_up == [(0, f"no leader for {TOPIC}")]
    assert stage.logs.positions == ({} if level_ms else {lane.place: 1})


def test_other_slices_go_on_while_a_damaged_slot_is_rebuilt() -> None:
    reading = Inline()
    stage = Stage(0, 1, reading=reading)
    stage.own()
    reading.holds = True
    lane = stage.lane(0)
    sound = lane.store.read_due

    def damaged(after: Key, upto_ms: int, limit: int) -> list[Frame]:
        whole = {"stop_ms": DUE_STOP_MS, "first_offset": 0, "stop_offset": OFFSET_MAX}
        raise SlotDamagedError(f"{limit} up to {upto_ms}", start_ms=after[0], **whole)

    lane.store.read_due = damaged  # type: ignore[method-assign]
    stage.write(0, 100, 200)
    stage.write(1, 100, 200)
    stage.step(10, 2)
    stage.step(200, 3)
    assert stage.delivered() == [(1, 0), (1, 1)]
    stage.write(0, 100)  # is not stored before the slot is there again
    stage.write(1, 0)
    stage.step(10, 2)
    assert stage.delivered() == [(1, 0), (1, 1), (1, 2)]
    assert lane.shard.stored == 2
    lane.store.read_due = sound  # type: ignore[method-assign]
    assert len(reading.waiting) == 1
    reading.run()
    stage.step(200, 4)
    assert stage.delivered()[3:] == [(0, 0), (0, 1), (0, 2)]


def test_a_take_over_that_is_denied_again_and_again_does_not_spin() -> None:
    stage = Stage(3)
    stage.heritage.denies = {3}
    stage.gate.says(Role.OWNER, [3])
    stage.step(10, 100)
    assert len(stage.sink.committed) <= 4, "a claim and a release in each second"


def test_records_due_between_commits_are_settled_in_one_step() -> None:
    limits = Limits(transaction_interval_ms_min=100, transaction_interval_ms_max=100)
    stage = Stage(3, limits=limits)
    stage.own()
    for _ in range(5):
        stage.write(3, 0)
        stage.step(10)
    assert stage.sink.open_outputs == []
    stage.step(100)
    assert len(stage.delivered()) == 5


def test_a_writer_that_is_lost_while_a_slice_is_interrupted_does_not_end_the_worker() -> None:
    limits = Limits(
        transaction_interval_ms_min=100, transaction_interval_ms_max=100, visible_at_commit=False
    )
    stage = Stage(3, limits=limits)
    stage.own()
    stage.write(3, 0)
    stage.step(1)
    assert stage.sink.open_outputs
    stage.sink.refuses_to["abort"] = OwnershipLostError("fenced")
    stage.logs.troubles.append(
        PartitionError(("delay_topic_any", 3), "can't be read", has_moved=False)
    )
    stage.step(1)
    stage.step(200, 10)
    assert stage.of(3).is_owner
    assert len(stage.sink.opened) == 2
    assert stage.delivered() == [(3, 0)]
