"""Thousands of schedules keep every promise, and replay from their seeds."""

import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from delayservice.lanes.ports import Place
from delayservice.store.base import Store
from delayservice.store.memory import MemoryStore
from delayservice.store.wheel.store import WheelStore
from tests.simulation.node import MakeStore
from tests.simulation.plan import SETTINGS_DIFFER, Plan, draw_plan
from tests.simulation.schedule import replay_command, run_schedule, silenced

BLOCK = 200
BLOCKS = 500 if os.environ.get("SIMULATION_MODE") == "long" else 16


@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_promise_is_kept_in_every_schedule(block: int) -> None:
    outcomes: Counter[str] = Counter()
    with silenced():
        for seed in range(block * BLOCK, (block + 1) * BLOCK):
            verdict = run_schedule(seed)
            assert verdict.broken is None, f"{verdict.broken}; see: {replay_command(seed)}"
            outcomes.update(verdict.outcomes)
    assert outcomes.keys() >= {
        "delivered",
        "dead",
        "cancelled",
        "replaced",
        "not_pending",
        "expired",
        "copied",
        "fired",
        "recurred",
    }


def test_promises_hold_where_settings_differ_and_replicas_restart() -> None:
    with silenced():
        for seed in range(70_000, 70_000 + BLOCK):
            verdict = run_schedule(seed, plan=replace(draw_plan(seed), **SETTINGS_DIFFER))
            assert verdict.broken is None, f"seed {seed}: {verdict.broken}"


def test_a_schedule_replays_from_its_seed() -> None:
    traces: list[list[str]] = [[], []]
    with silenced():
        for trace in traces:
            run_schedule(7, tell=trace.append)
    assert traces[0] == traces[1]
    assert len(traces[0]) > 50


def test_promises_hold_with_the_memory_store() -> None:
    def make_store(_node: str, _place: Place) -> Store:
        return MemoryStore()

    _run_with(make_store, range(50_000, 50_200))


def test_promises_hold_with_the_wheel_as_a_crash_leaves_its_files(tmp_path: Path) -> None:
    for seed in range(60_000, 60_040):
        _run_with(_Wheels(tmp_path / str(seed)).make, range(seed, seed + 1))


class _Wheels:
    """Each life of a node gets a copy of what the life before left on disk, unclosed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lives: dict[tuple[str, Place], int] = {}
        self._open: list[Store] = []

    def make(self, node: str, place: Place) -> Store:
        life = self._lives.get((node, place), 0)
        folder = self._path / f"{node}-{place[0]}-{place[1]}"
        if life:
            shutil.copytree(folder / str(life), folder / str(life + 1))
        self._lives[node, place] = life + 1
        (folder / str(life + 1)).mkdir(parents=True, exist_ok=True)
        wheel = WheelStore(folder / str(life + 1))
        self._open.append(wheel)
        return wheel


def _run_with(make_store: MakeStore, seeds: range) -> None:
    with silenced():
        for seed in seeds:
            plan = _without_simulated_disks(draw_plan(seed))
            verdict = run_schedule(seed, plan=plan, make_store=make_store)
            assert verdict.broken is None, f"seed {seed}: {verdict.broken}"


def _without_simulated_disks(plan: Plan) -> Plan:
    """What only the simulated disks can do is left out."""
    fields = {name: getattr(plan, name) for name in Plan.__slots__}
    return Plan(**fields | {"slots_fail": False, "retention": False})
