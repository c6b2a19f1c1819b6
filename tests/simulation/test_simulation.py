"""Thousands of schedules keep every promise, and replay from their seeds."""

import os
import shutil
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from delayservice.base.errors import StoreError
from delayservice.engine.ports import Place
from delayservice.store.base import Store
from delayservice.store.memory import MemoryStore
from tests.rocks import LoneRocks
from tests.simulation.blocks import blocks
from tests.simulation.node import MakeStore
from tests.simulation.plan import (
    AT_LEAST_ONCE,
    HOMES_AWAY,
    SEEDS_OF_HOMES,
    SEEDS_OF_LOSS,
    SEEDS_OF_OUTAGE,
    SETTINGS_DIFFER,
    TRUNCATED_LEVELS,
    Plan,
    draw_plan,
    with_homes,
)
from tests.simulation.schedule import replay_command, run_schedule, silenced
from tests.wheels import LoneStore

BLOCK = 200
BLOCKS = 500 if os.environ.get("SIMULATION_MODE") == "long" else 8
QUICK_BLOCKS = 2
"""Blocks that `make test` runs; `make long` runs the others."""


@pytest.mark.parametrize("block", blocks(BLOCKS, QUICK_BLOCKS))
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
        "denied",
    }


def test_promises_hold_where_settings_differ_and_replicas_restart() -> None:
    with silenced():
        for seed in range(70_000, 70_000 + BLOCK):
            verdict = run_schedule(seed, plan=replace(draw_plan(seed), **SETTINGS_DIFFER))
            assert verdict.broken is None, f"seed {seed}: {verdict.broken}"


def test_promises_hold_where_dead_letters_and_outcomes_can_not_be_written_for_a_while() -> None:
    with silenced():
        for seed in range(90_000, 90_000 + BLOCK):
            plan = replace(draw_plan(seed), own_topics_fail=True, targets_fail=seed % 2 == 0)
            verdict = run_schedule(seed, plan=plan)
            assert verdict.broken is None, f"seed {seed}: {verdict.broken}"


def test_a_log_that_can_not_be_written_to_keeps_back_no_other_slice_whatever_else_fails() -> None:
    with silenced():
        for seed in range(140_000, 140_045):
            plan = with_homes(seed, draw_plan(seed), HOMES_AWAY)
            plan = replace(plan, own_topics_fail=True, targets_fail=True)
            verdict = run_schedule(seed, plan=plan)
            assert verdict.broken is None, f"seed {seed}: {verdict.broken}"


@pytest.mark.parametrize("block", blocks(2))
def test_promises_hold_where_logs_lose_their_end_topics_are_made_anew_and_targets_get_more(
    block: int,
) -> None:
    first = SEEDS_OF_LOSS.start + block * BLOCK
    with silenced():
        for seed in range(first, first + BLOCK):
            verdict = run_schedule(seed)
            assert verdict.broken is None, f"{verdict.broken}; see: {replay_command(seed)}"


def test_promises_hold_where_logs_of_level_topics_lose_their_end() -> None:
    with silenced():
        for seed in range(83_000, 83_000 + BLOCK):
            verdict = run_schedule(seed, plan=replace(draw_plan(seed), **TRUNCATED_LEVELS))
            assert verdict.broken is None, f"seed {seed}: {verdict.broken}"


@pytest.mark.parametrize("block", blocks(2))
def test_what_is_stored_is_delivered_where_retention_deletes_what_nobody_has_walked(
    block: int,
) -> None:
    outcomes: Counter[str] = Counter()
    first = SEEDS_OF_OUTAGE.start + block * BLOCK
    with silenced():
        for seed in range(first, first + BLOCK):
            verdict = run_schedule(seed)
            assert verdict.broken is None, f"{verdict.broken}; see: {replay_command(seed)}"
            outcomes.update(verdict.outcomes)
    assert outcomes["lost"] > 0
    assert outcomes["undecided"] > 0


@pytest.mark.parametrize("block", range(50 if os.environ.get("SIMULATION_MODE") == "long" else 1))
def test_promises_hold_where_ids_find_home(block: int) -> None:
    first = SEEDS_OF_HOMES.start + block * BLOCK
    outcomes: Counter[str] = Counter()
    with silenced():
        for seed in range(first, first + BLOCK):
            verdict = run_schedule(seed)
            assert verdict.broken is None, f"{verdict.broken}; see: {replay_command(seed)}"
            outcomes.update(verdict.outcomes)
    assert outcomes.keys() >= {"forwarded", "waits", "carried", "replaced", "cancelled", "fired"}


@pytest.mark.parametrize("more", [{"own_topics_fail": True}, AT_LEAST_ONCE, {"retention": True}])
def test_promises_hold_where_ids_find_home_and_something_else_is_amiss(
    more: dict[str, Any],
) -> None:
    with silenced():
        for seed in range(140_000, 140_020):
            plan = replace(with_homes(seed, draw_plan(seed), HOMES_AWAY), **more)
            verdict = run_schedule(seed, plan=plan)
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


@pytest.mark.parametrize(
    ("kind", "seeds"), [(LoneStore, range(60_000, 60_020)), (LoneRocks, range(65_000, 65_008))]
)
def test_promises_hold_with_files_as_a_crash_leaves_them(
    kind: type[LoneStore] | type[LoneRocks], seeds: range, tmp_path: Path
) -> None:
    lives = 0
    for seed in seeds:
        with ExitStack() as closing:
            disks = _Disks(tmp_path / str(seed), kind, closing, Random(seed))
            _run_with(disks.make, range(seed, seed + 1))
            lives += disks.lives
        shutil.rmtree(tmp_path / str(seed))
    assert lives > 3 * len(seeds), "hardly anything was opened again"


class _Disks:
    """Each life of a node gets a copy of what the life before left on disk, unclosed: all of it, or
    what was there at some time when it was synced.

    Attributes:
        lives: stores that were opened on files of a life before.
    """

    def __init__(
        self,
        path: Path,
        kind: type[LoneStore] | type[LoneRocks],
        closing: ExitStack,
        rng: Random,
    ) -> None:
        self.lives = 0
        self._path = path
        self._kind = kind
        self._closing = closing
        self._rng = rng
        self._left: dict[tuple[str, Place], list[Path]] = {}

    def make(self, node: str, place: Place) -> Store:
        """Open a store as it survived."""
        folder = self._path / f"{node}-{place[0]}-{place[1]}"
        left = self._left.get((node, place))
        number = len(list(folder.iterdir())) if folder.exists() else 0
        current, synced = folder / f"{number}", folder / f"{number}-synced"
        if left is None:
            current.mkdir(parents=True)
        else:
            self.lives += 1
            shutil.copytree(self._rng.choice(left), current)
        shutil.copytree(current, synced)
        self._left[node, place] = [current, synced]
        store = self._kind(current)
        self._closing.callback(_close_at_last, store)
        sync = store.sync

        def sync_and_copy() -> int:
            durable = sync()
            if self._rng.random() < 0.2:
                shutil.rmtree(synced)
                shutil.copytree(current, synced)
            return durable

        store.sync = sync_and_copy  # type: ignore[method-assign]
        return store


def _close_at_last(store: Store) -> None:
    with suppress(StoreError):  # it was closed in good order before
        store.close()


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
