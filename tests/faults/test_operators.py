"""What people do: two nodes with one id, owner nodes deleted by hand, one more node, one fewer."""

from __future__ import annotations

import contextlib

import pytest
from kazoo.exceptions import NoNodeError

from tests.faults.conftest import Scenario
from tests.faults.stage import Script

pytestmark = [pytest.mark.fault, pytest.mark.timeout(900)]

DELETIONS = 12


def test_two_nodes_bear_the_same_id(scenario: Scenario) -> None:
    with scenario.play(Script(session_s=15), nodes_min=2) as stage:
        stage.await_written(300)
        twin = stage.add_node(1, "twin")
        stage.await_true(lambda: twin.told("node_id_in_use"), "the second one says what is wrong")
        stage.await_written(4 * stage.script.per_s)
        assert not twin.told("took_over"), "it owns nothing meanwhile"
        stage.nodes[0].kill()
        stage.await_served()
        # It is alone under its name now, so it is as good as any other.
        stage.await_true(twin.serves, "the second one has taken its part of the work")
        stage.await_delivered(300)


def test_two_nodes_of_one_id_and_one_state_folder(scenario: Scenario) -> None:
    with scenario.play(Script()) as stage:
        first = stage.nodes[0]
        second = stage.make_node(1)
        second.log_path = first.log_path.with_name("second.log")
        second.start()
        stage.await_true(lambda: not second.running, "the second one ends by itself")
        assert "state_dir" in second.log_path.read_text("utf-8")
        stage.await_delivered(200)


def test_owner_nodes_are_deleted_by_hand(scenario: Scenario) -> None:
    with scenario.play(Script(), nodes_min=2) as stage:
        for _ in range(DELETIONS):
            stage.await_written(stage.random.randrange(20, 200))
            slice_no = stage.random.randrange(stage.script.slices)
            with contextlib.suppress(NoNodeError):
                stage.keeper.retry(stage.keeper.delete, stage.owner_path(slice_no))
        for slice_no in range(stage.script.slices):
            stage.await_true(
                lambda: stage.registered_owner(slice_no),  # noqa: B023
                f"slice {slice_no} has a registered owner again",
            )
        stage.await_served()


def test_nodes_are_taken_away_until_one_is_left_and_come_back(scenario: Scenario) -> None:
    with scenario.play(Script(), nodes_min=2) as stage:
        for node in stage.nodes[1:]:
            stage.await_written(300)
            assert node.stop() == 0
            stage.await_served()
        assert set(stage.nodes[0].serves()) == set(range(stage.script.slices))
        for node in stage.nodes[1:]:
            stage.await_written(300)
            node.start()
            stage.await_true(node.serves, f"{node.node_id} has taken its part of the work")
        stage.await_served()
