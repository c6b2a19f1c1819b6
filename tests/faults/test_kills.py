"""Nodes and workers are killed, wiped and restarted under load, again and again."""

from __future__ import annotations

import signal

import pytest

from tests.faults.conftest import Scenario
from tests.faults.node import Node
from tests.faults.stage import Script, Stage

pytestmark = [pytest.mark.fault, pytest.mark.timeout(900)]

KILLS = 6
# The least that four slices may have in one transaction: 200 records of each.
BATCH = 800
ROLLING_PER_S = 5_000


def killed(stage: Stage) -> Node:
    """An owner, at a moment and of a place that the seed chooses."""
    stage.await_written(stage.random.randrange(50, 400))
    victim = stage.any_owner()
    victim.kill()
    return victim


def test_nothing_happens(scenario: Scenario) -> None:
    with scenario.play(Script()) as stage:
        stage.await_delivered(500)


@pytest.mark.parametrize("store", [pytest.param("wheel", marks=pytest.mark.sample), "rocksdb"])
def test_owners_are_killed_in_a_loop(scenario: Scenario, store: str) -> None:
    with scenario.play(Script(sets=(f"node.store={store}",))) as stage:
        for _ in range(KILLS):
            victim = killed(stage)
            if len(stage.nodes) > 1:
                stage.await_served()
            victim.start()
            stage.await_served()


def test_owners_are_killed_at_least_once(scenario: Scenario) -> None:
    """A kill may double what the victim had sent and not committed: a batch of late records, and
    one of due records.
    """
    script = Script(
        mode="at_least_once",
        sets=(f"delivery.batch_records_max={BATCH}",),
        duplicates_max=KILLS * 2 * BATCH,
    )
    with scenario.play(script) as stage:
        for _ in range(KILLS):
            victim = killed(stage)
            victim.start()
            stage.await_served()


def test_workers_are_killed_in_a_loop(scenario: Scenario) -> None:
    with scenario.play(Script()) as stage:
        for _ in range(KILLS):
            stage.await_written(stage.random.randrange(50, 400))
            victim = stage.any_owner()
            deaths = len(victim.told("worker_died"))
            victim.signal_worker(signal.SIGKILL)
            stage.await_true(
                lambda: len(victim.told("worker_died")) > deaths,  # noqa: B023
                "the supervisor noticed",
            )
            stage.await_served()


def test_all_nodes_are_killed_at_once(scenario: Scenario) -> None:
    with scenario.play(Script()) as stage:
        for _ in range(2):
            stage.await_written(400)
            for node in stage.nodes:
                node.kill()
            stage.await_written(200)
            for node in stage.nodes:
                node.start()
            stage.await_served()


def test_an_owner_is_killed_and_its_store_wiped(scenario: Scenario) -> None:
    with scenario.play(Script()) as stage:
        for node in stage.nodes:
            stage.await_written(300)
            node.kill()
            node.wipe()
            node.start()
            stage.await_served()


def test_all_nodes_are_restarted_one_by_one_under_full_load(scenario: Scenario) -> None:
    with scenario.play(Script(per_s=ROLLING_PER_S)) as stage:
        for node in stage.nodes:
            stage.await_written(2 * ROLLING_PER_S)
            assert node.stop() == 0
            if len(stage.nodes) > 1:
                stage.await_served()
            node.start()
            stage.await_served()
