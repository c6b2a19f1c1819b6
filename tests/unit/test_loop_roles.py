"""What a slice's loop does in each role, and when the role changes under it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import create_autospec

import pytest

from delayservice.core.role import Role
from delayservice.core.settle import Routes
from delayservice.cron import cron_time
from delayservice.errors import OwnershipLostError
from delayservice.lanes.ports import Checkpoints, Gate, Observer, Sink, Source
from delayservice.lanes.slice_loop import Limits, SliceLoop


class Stage:
    """An owner's loop between ports that note what is asked of them."""

    def __init__(self, *roles: Role) -> None:
        self.sink = create_autospec(Sink, instance=True)
        self.gate = create_autospec(Gate, instance=True)
        self.gate.role.side_effect = roles
        self.gate.frozen.return_value = None
        self.gate.epoch.return_value = 7
        source = create_autospec(Source, instance=True)
        source.poll.return_value = []
        self.checkpoints = create_autospec(Checkpoints, instance=True)
        self.checkpoints.read_back.return_value = None
        self.checkpoints.latest.return_value = None
        self.checkpoints.peek.return_value = None
        self.loop = SliceLoop(
            3,
            node_id="n1",
            source=source,
            sink=self.sink,
            checkpoints=self.checkpoints,
            clock=cast("Any", SimpleNamespace(wall_ms=lambda: 0, monotonic_s=lambda: 1_000.0)),
            gate=self.gate,
            observer=create_autospec(Observer, instance=True),
            routes=Routes("dead", "outcomes", b"secret", 1, 0, (), cron_time),
            contract_of=cast("Any", None),
            limits=Limits(),
        )
        self.lane = SimpleNamespace(
            shard=SimpleNamespace(is_staged=True, is_filling=False, stored=0),
            settle_late=lambda *_: self.settled(),
            settle_due=lambda *_: [],
            committed=lambda: None,
            step_down=lambda: None,
            next_due_ms=lambda: None,
            verdicts=SimpleNamespace(blocked={}),
            checkpoint=None,
        )
        self.loop.lanes["topic"] = cast("Any", self.lane)
        self.loop.owner = True
        self.loop._checkpoint = cast("Any", lambda: None)  # type: ignore[method-assign]
        self.loop._commit = lambda: self.sink.commit(b"")  # type: ignore[method-assign]
        self.has_settled = False

    def settled(self) -> list[Any]:
        self.has_settled = True
        return []


def test_an_owner_settles_and_commits() -> None:
    stage = Stage(Role.OWNER, Role.OWNER)
    stage.loop.step(0)
    assert stage.has_settled
    assert stage.sink.commit.called


@pytest.mark.parametrize("role", [Role.REPLICA, Role.PAUSED])
def test_who_is_no_owner_any_more_after_the_poll_settles_nothing(role: Role) -> None:
    stage = Stage(Role.OWNER, role)
    stage.loop.step(0)
    assert not stage.has_settled
    assert not stage.sink.commit.called
    assert stage.loop.owner, "the next turn hands over"


def test_an_owner_that_is_paused_finishes_what_has_begun_and_begins_nothing() -> None:
    stage = Stage(Role.PAUSED, Role.PAUSED, Role.PAUSED, Role.PAUSED)
    stage.loop.step(0)
    assert not stage.sink.commit.called
    stage.loop._uncommitted.records = 1
    stage.loop.step(0)
    assert stage.sink.commit.called
    assert not stage.has_settled


def test_who_has_to_let_go_commits_and_says_when_it_is_over() -> None:
    stage = Stage(Role.REPLICA)
    stage.loop.step(0)
    assert stage.sink.commit.called
    assert stage.checkpoints.await_read_back.called, "else the heir has to fence twice"
    assert stage.sink.discard.called
    stage.gate.settling.assert_called_once_with(3, is_settling=False)


def test_an_heir_connects_before_it_may_fence() -> None:
    stage = Stage(Role.HEIR)
    stage.loop.owner = False
    stage.loop.step(0)
    assert stage.sink.prepare.called
    assert not stage.sink.init.called


def test_nobody_is_fenced_without_the_ensembles_word() -> None:
    stage = Stage(Role.OWNER)
    stage.loop.owner = False
    stage.gate.confirm.return_value = False
    stage.loop.step(0)
    assert not stage.sink.init.called


def test_who_is_overtaken_while_fencing_lets_go_before_it_reads_anything() -> None:
    stage = Stage(Role.OWNER)
    stage.loop.owner = False
    stage.gate.confirm.side_effect = [True, False]
    stage.loop.step(0)
    assert stage.sink.init.called
    assert stage.sink.discard.called
    assert not stage.checkpoints.latest.called
    assert not stage.loop.owner


def test_a_slice_that_can_t_be_taken_over_twice_is_left_to_others() -> None:
    stage = Stage(Role.OWNER, Role.OWNER)
    stage.loop.owner = False
    stage.sink.init.side_effect = OwnershipLostError("no coordinator")
    stage.loop.step(0)
    assert not stage.gate.gave_up.called
    stage.loop.step(0)
    stage.gate.gave_up.assert_called_once_with(3, "no coordinator")
