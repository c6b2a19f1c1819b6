"""One broker is out of reach: for one node only, or for a moment for all."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from typing import Final

import pytest

from delay_devtools.cluster import EmbeddedCluster
from tests.faults.conftest import Scenario
from tests.faults.network import Namespace
from tests.faults.node import Node, Place
from tests.faults.stage import Script, Stage

pytestmark = pytest.mark.fault

STOOD_STILL_S: Final = 6.0
"""Longer than an owner waits for one silent broker."""
BROKER_SESSION_S: Final = 20
"""Longer than it stands still: else other brokers soon lead, and nobody asks it any more."""


def port_of(stage: Stage, broker: int) -> int:
    return int(stage.cluster.bootstrap.split(",")[broker - 1].rpartition(":")[2])


@pytest.mark.parametrize("broker", [1, 2, 3])
def test_a_node_without_contact_to_one_broker_hands_over_its_slices(
    scenario: Scenario, away: Namespace, broker: int
) -> None:
    script = Script(places={1: Place(wrapper=away.wrapper)}, settle_s=120)
    with scenario.play(script, nodes_min=2) as stage:
        cut_off, others = stage.nodes[0], stage.nodes[1:]
        stage.await_true(cut_off.serves, "it owns what it is preferred for")
        stage.await_written(600)
        before = [told(node) for node in stage.nodes]
        away.cut(port_of(stage, broker))
        stage.await_true(
            lambda: len({n for node in others for n in node.serves()}) == script.slices,
            "others have taken over",
        )
        causes = {one["cause"] for one in cut_off.told_now("worker_not_electable")}
        assert "broker_unreachable" in causes
        stage.await_delivered(600)
        assert [told(node) for node in others] == before[1:], "no other notices"
        electable = len(cut_off.told_now("worker_electable"))
        away.heal()
        stage.await_true(
            lambda: len(cut_off.told_now("worker_electable")) > electable, "it takes part again"
        )
        stage.await_true(cut_off.serves, "and owns again what it is preferred for")
        assert not cut_off.told_now("kafka_lost"), "it reached the other brokers all the time"


def told(node: Node) -> int:
    return len(node.told_now("brokers_silent", "kafka_lost"))


def test_a_broker_that_stands_still_makes_no_node_let_go_as_if_only_it_were_cut_off(
    scenario: Scenario,
) -> None:
    patient = {"broker.session.timeout.ms": str(1_000 * BROKER_SESSION_S)}
    with (
        EmbeddedCluster(brokers=3, broker_properties=patient) as own,
        replace(scenario, cluster=own).play(Script(settle_s=120)) as stage,
    ):
        stage.await_written(600)
        stage.cluster.signal_broker(2, signal.SIGSTOP)
        try:
            ends_s = time.monotonic() + STOOD_STILL_S
            stage.await_true(
                lambda: (
                    all(node.told_now("brokers_silent") for node in stage.nodes)
                    and time.monotonic() > ends_s
                ),
                "every node has noticed, and it stood still for long enough",
            )
        finally:
            stage.cluster.signal_broker(2, signal.SIGCONT)
        stage.await_delivered(600)
        for node in stage.nodes:
            assert not node.told_now("kafka_lost")
            assert not [one for one in node.told_now("resigned") if "not answer" in one["why"]]
