"""What a worker's loop does with a slice in each role, and when the role changes under it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from delayservice.base.errors import KafkaEdgeError, OwnershipLostError, WriterEndedError
from delayservice.engine.claims import CLAIM, encode_word
from delayservice.engine.ports import Control, Role
from delayservice.slices.edges import Limits
from delayservice.slices.ownership import follow_roles
from delayservice.slices.slice import Phase
from tests.unit.loop_stage import Stage

SLOW = Limits(
    transaction_interval_ms_min=100,
    transaction_interval_ms_max=100,
    visible_at_commit=False,  # so that a transaction begins before it can be committed
)


@pytest.mark.parametrize("role", [Role.REPLICA, Role.HEIR, Role.PAUSED])
def test_an_owner_that_lost_its_slice_during_the_poll_settles_nothing(role: Role) -> None:
    stage = Stage(3)
    stage.own()
    stage.write(3, 0)
    stage.logs.while_polling = lambda: stage.gate.says(role, [3])
    stage.step(10)
    assert stage.delivered() == []
    assert stage.sink.open_outputs == []


def test_an_owner_that_is_paused_finishes_what_has_begun_and_begins_nothing() -> None:
    stage = Stage(3, limits=SLOW)
    stage.own()
    stage.write(3, 0)
    stage.step(1)
    assert stage.sink.open_outputs, "begun, and not committed yet"
    stage.gate.says(Role.PAUSED, [3])
    stage.write(3, 0)
    stage.step(50, 5)
    assert stage.delivered() == [(3, 0)]
    assert stage.of(3).is_owner
    stage.gate.says(Role.OWNER, [3])
    stage.step(50, 3)
    assert stage.delivered() == [(3, 0), (3, 1)]


def test_an_heir_has_its_writer_open_and_claims_nothing() -> None:
    stage = Stage(3)
    stage.gate.says(Role.HEIR, [3])
    stage.step(10, 3)
    assert stage.sink.opened == ["w1"]
    assert stage.sink.committed == []


def test_a_node_that_is_to_own_nothing_opens_no_writer() -> None:
    stage = Stage(3)
    stage.step(10, 3)
    assert stage.sink.opened == []


def test_nobody_is_fenced_without_the_ensembles_word() -> None:
    stage = Stage(3)
    stage.sink.claims.append((b"3:other", encode_word(3, "other", "n2", CLAIM, 0)))
    stage.heritage.denies = {3}
    stage.gate.says(Role.OWNER, [3])
    stage.step(10, 10)
    assert "confirm" in stage.heritage.calls
    assert stage.heritage.fenced == []
    stage.heritage.denies.clear()
    stage.step(200, 10)  # a slice that could not be taken is left alone for a moment
    assert stage.heritage.fenced == ["other"]
    assert stage.of(3).is_owner


def test_a_slice_claimed_for_another_node_is_released_unserved() -> None:
    stage = Stage(3, 4)
    stage.heritage.denies = {3}
    stage.gate.says(Role.OWNER, [3, 4])
    stage.step(10, 2)
    stage.gate.says(Role.REPLICA, [3])
    stage.step(10, 3)
    words = [word for one in stage.sink.committed for word in one.words]
    assert words[:3] == [(3, "claim"), (4, "claim"), (3, "release")]
    assert not stage.of(3).is_owner
    assert stage.of(4).is_owner
    assert 3 not in stage.sink.checkpoints


def test_a_claim_that_is_wanted_no_longer_before_it_is_committed_is_not_made() -> None:
    stage = Stage(3)
    stage.gate.says(Role.HEIR, [3])
    stage.step(10)
    stage.clock_watch.reason = "ahead"  # nothing is committed meanwhile
    stage.background.holds = True
    stage.gate.says(Role.OWNER, [3])
    follow_roles(stage.loop.state)
    assert stage.of(3).phase is Phase.CLAIMING
    stage.gate.says(Role.REPLICA, [3])
    follow_roles(stage.loop.state)
    assert stage.of(3).phase is Phase.REPLICA
    assert not stage.background.waiting


def test_a_failed_take_over_is_left_to_others_and_tried_again() -> None:
    stage = Stage(3)
    stage.heritage.refuses_to["fence"] = KafkaEdgeError("no coordinator")
    stage.gate.says(Role.OWNER, [3])
    stage.step(10, 5)
    assert stage.gate.given_up == [(3, "no coordinator")]
    assert stage.of(3).trouble == "no coordinator"
    assert [word for one in stage.sink.committed for word in one.words] == [
        (3, "claim"),
        (3, "release"),
    ]
    stage.step(300, 5)
    assert stage.of(3).is_owner
    assert stage.of(3).trouble == ""


def test_opening_a_writer_is_tried_again_once_a_second() -> None:
    stage = Stage(3)
    stage.gate.says(Role.OWNER, [3])
    for _ in range(2):
        stage.sink.refuses_to["open"] = KafkaEdgeError("give the service Write")
        stage.step(10)
        stage.step(100, 9)
        assert stage.sink.opened == []
        stage.clock.now_ms += 1_000
        assert stage.loop.writer_trouble == "give the service Write"
        stage.gate.says(Role.REPLICA, [3])  # others have the slice
    stage.step(10, 4)
    assert stage.loop.writer_trouble == ""
    stage.gate.says(Role.OWNER, [3])
    stage.step(10, 4)
    assert stage.of(3).is_owner


@pytest.mark.parametrize("is_claim", [True, False], ids=["claim", "first_checkpoint"])
@pytest.mark.parametrize("error", [WriterEndedError, OwnershipLostError, KafkaEdgeError])
def test_a_slice_whose_first_commit_fails_again_and_again_is_left_to_others(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], *, is_claim: bool
) -> None:
    stage = Stage(3)
    commit, failed = stage.sink.commit, []

    def fail_first(controls: Sequence[Control]) -> None:
        if is_claim in {bool(control.writer) for control in controls}:
            failed.append(controls)
            raise error("it takes too long")
        commit(controls)

    monkeypatch.setattr(stage.sink, "commit", fail_first)
    stage.gate.says(Role.OWNER, [3])
    for _ in range(100):
        stage.step(100)
        if stage.gate.given_up:
            break
    assert stage.gate.given_up[0] == (3, "it takes too long")
    assert len(failed) <= 4
