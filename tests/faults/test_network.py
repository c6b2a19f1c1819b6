"""A node is cut off in its network namespace: from Kafka, from ZooKeeper, from both."""

from __future__ import annotations

import pytest

from tests.faults.conftest import Scenario
from tests.faults.network import Namespace
from tests.faults.node import Node, Place
from tests.faults.stage import Script, Stage

pytestmark = pytest.mark.fault


def ports(stage: Stage, *parts: str) -> list[int]:
    """Client ports of ``kafka``, ``zookeeper`` or both."""
    strings = {"kafka": stage.cluster.bootstrap, "zookeeper": stage.cluster.zookeeper}
    return [int(one.rpartition(":")[2]) for part in parts for one in strings[part].split(",")]


def others_serve(stage: Stage, cut_off: Node) -> bool:
    """What the node itself believes does not count: it may not know yet."""
    others = [node for node in stage.nodes if node is not cut_off]
    served = {slice_no for node in others for slice_no in node.serves()}
    return len(served) == stage.script.slices


@pytest.mark.parametrize(
    "parts", [("kafka",), ("zookeeper",), ("kafka", "zookeeper")], ids="+".join
)
def test_a_node_is_cut_off_and_comes_back(
    scenario: Scenario, away: Namespace, parts: tuple[str, ...]
) -> None:
    script = Script(places={1: Place(wrapper=away.wrapper)}, settle_s=120)
    with scenario.play(script) as stage:
        for _ in range(2):
            stage.await_written(300)
            away.cut(*ports(stage, *parts))
            if len(stage.nodes) > 1:
                stage.await_true(
                    lambda: others_serve(stage, stage.nodes[0]), "others have taken over"
                )
                stage.await_delivered(300)
            else:
                stage.await_written(4 * stage.script.per_s)
            away.heal()
            stage.await_delivered(300)
        stage.await_served()


def test_the_link_of_a_node_goes_down_and_up(scenario: Scenario, away: Namespace) -> None:
    script = Script(places={1: Place(wrapper=away.wrapper)}, settle_s=120)
    with scenario.play(script) as stage:
        stage.await_written(300)
        for seconds in (1, 2 * stage.script.session_s):
            away.unplug()
            stage.await_written(seconds * stage.script.per_s)
            away.plug()
            stage.await_delivered(300)
        stage.await_served()
