"""A node stands still in the middle of a transaction, is replaced, and wakes up."""

from __future__ import annotations

import pytest

from tests.faults.conftest import Scenario
from tests.faults.node import LET_GO, Node, Place
from tests.faults.stage import Script, Stage

pytestmark = [pytest.mark.fault, pytest.mark.timeout(900)]

NTH = 40
"""Late enough that the load flows: each of four slices has passed the point some ten times."""
POINTS = (
    "before_produce",
    "flushed",
    pytest.param("before_commit", marks=pytest.mark.sample),
    "after_commit",
)


def replaced_and_woken(stage: Stage, zombie: Node) -> None:
    """Freeze all of a node until others have its slices and have worked, and wake it."""
    had = zombie.serves()
    lost = len(zombie.told(*LET_GO))
    zombie.freeze()
    stage.await_served()
    stage.await_delivered(100)
    zombie.thaw()
    if had:
        stage.await_true(lambda: len(zombie.told(*LET_GO)) > lost, "the zombie has stepped down")
    stage.await_served()


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_that_stood_still_at_a_point_is_fenced(scenario: Scenario, point: str) -> None:
    place = Place(fault=f"{point}:stop:{NTH}")
    with scenario.play(Script(places={1: place}), nodes_min=2) as stage:
        zombie = stage.nodes[0]
        stage.await_true(zombie.has_stopped_itself, f"a worker stands still at {point}")
        replaced_and_woken(stage, zombie)
        if point == "before_commit":
            # Its very next step was the commit: the broker refused it, and nobody else had to.
            why = [str(line["why"]) for line in zombie.told("ownership_lost")]
            assert any("fenced" in one for one in why), why
        stage.await_delivered(300)


def test_owners_are_frozen_and_woken_in_a_loop(scenario: Scenario) -> None:
    with scenario.play(Script(), nodes_min=2) as stage:
        for _ in range(4):
            stage.await_written(stage.random.randrange(50, 400))
            replaced_and_woken(stage, stage.any_owner())


def test_a_freeze_shorter_than_the_session_loses_no_slice(scenario: Scenario) -> None:
    with scenario.play(Script(session_s=30)) as stage:
        stage.await_written(200)
        for _ in range(3):
            frozen = stage.any_owner()
            frozen.freeze()
            stage.await_written(stage.script.per_s)
            frozen.thaw()
            stage.await_delivered(200)
        assert not any(node.told("ownership_lost") for node in stage.nodes)


def test_all_nodes_are_frozen_past_their_session_and_woken(scenario: Scenario) -> None:
    with scenario.play(Script()) as stage:
        stage.await_written(300)
        for node in stage.nodes:
            node.freeze()
        stage.await_written(2 * stage.script.session_s * stage.script.per_s)
        for node in stage.nodes:
            node.thaw()
        stage.await_delivered(500)
        stage.await_served()
