"""The machine of a node has troubles: its disk is full, its clock is wrong."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.faults.conftest import Scenario
from tests.faults.disk import SmallDisk, disk_missing
from tests.faults.node import Place
from tests.faults.stage import Script
from tests.faults.wallclock import WallClock, clock_missing

DISK_MIB = 16

pytestmark = pytest.mark.fault


@pytest.mark.parametrize("store", ["wheel", "rocksdb"])
def test_the_disk_of_a_node_is_full_for_a_while(
    scenario: Scenario, tmp_path: Path, store: str
) -> None:
    if reason := disk_missing():
        pytest.skip(reason)
    # A sync for each few KiB: else nothing is written while the disk is full.
    sets = (f"node.store={store}", "wheel.buffer_bytes_max=64KiB", "wheel.sync_bytes=64KiB")
    with SmallDisk(tmp_path / "disk", DISK_MIB) as disk:
        place = Place(state_dir=disk.folder / "state")
        with scenario.play(Script(places={1: place}, sets=sets, settle_s=120)) as stage:
            stage.await_written(300)
            disk.fill()
            stage.await_true(
                lambda: stage.nodes[0].told("worker_died", "storing_stopped"),
                "the node has met its full disk",
                120,
            )
            stage.await_written(300)
            disk.free()
            stage.await_delivered(300)
            stage.await_served()


@pytest.fixture
def clock(tmp_path: Path) -> WallClock:
    """The wall clock of one node."""
    if reason := clock_missing():
        pytest.skip(reason)
    return WallClock(tmp_path / "clock")


@pytest.mark.parametrize("step_s", [5.0, -5.0], ids=["forward", "back"])
def test_the_clock_of_a_node_is_stepped_and_put_right(
    scenario: Scenario, clock: WallClock, step_s: float
) -> None:
    with scenario.play(Script(places={1: Place(environment=clock.environment)})) as stage:
        stage.await_written(300)
        clock.set(step_s)
        stage.await_true(
            lambda: stage.nodes[0].told("clock_in_doubt") or not stage.nodes[0].serves(),
            "the node doubts its clock",
        )
        stage.await_written(4 * stage.script.per_s)
        clock.set(0.0)
        stage.await_delivered(300)
        stage.await_served()


@pytest.mark.parametrize("skew_s", [0.4, -0.4], ids=["ahead", "behind"])
def test_a_clock_that_is_a_little_off_is_early_by_no_more_than_that(
    scenario: Scenario, clock: WallClock, skew_s: float
) -> None:
    clock.set(skew_s)
    script = Script(
        places={1: Place(environment=clock.environment)},
        early_ms=round(max(skew_s, 0.0) * 1_000),
    )
    with scenario.play(script) as stage:
        stage.await_written(500)
        stage.await_delivered(500)


def test_a_clock_that_is_far_off_from_the_start_delivers_nothing_early(
    scenario: Scenario, clock: WallClock
) -> None:
    clock.set(5.0)
    with scenario.play(Script(places={1: Place(environment=clock.environment)})) as stage:
        stage.await_written(500)
        clock.set(0.0)
        stage.await_delivered(300)


def test_owners_are_killed_while_their_clocks_differ(scenario: Scenario, clock: WallClock) -> None:
    """What one node settled ahead of time must not be lost to one whose clock is behind."""
    clock.set(0.3)
    script = Script(places={1: Place(environment=clock.environment)}, early_ms=300)
    with scenario.play(script, nodes_min=2) as stage:
        for _ in range(4):
            stage.await_written(200)
            victim = stage.any_owner()
            victim.kill()
            stage.await_served()
            victim.start()
            stage.await_true(victim.serves, "it owns again")


def test_a_machine_that_was_suspended_is_fenced_though_its_clock_stood_still(
    scenario: Scenario, clock: WallClock
) -> None:
    """Its leases seem fresh to it when it wakes, and others have its slices."""
    script = Script(places={1: Place(environment=clock.environment)})
    with scenario.play(script, nodes_min=2) as stage:
        sleeper, suspended_s = stage.nodes[0], 0.0
        for _ in range(2):
            stage.await_true(sleeper.serves, "it owns slices")
            slept_s = time.monotonic()
            sleeper.freeze()
            stage.await_served()
            stage.await_written(300)
            suspended_s += time.monotonic() - slept_s
            clock.suspend(suspended_s)
            sleeper.thaw()
            stage.await_delivered(300)
        stage.await_served()
