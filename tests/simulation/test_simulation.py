"""Thousands of schedules keep every promise, and replay from their seeds."""

import shutil
from collections import Counter
from collections.abc import Callable
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
from tests.simulation.blocks import FIRST_SEED, IS_LONG, blocks
from tests.simulation.node import MakeStore
from tests.simulation.plan import (
    AT_LEAST_ONCE,
    HOMES_AWAY,
    KINDS,
    OUTAGE,
    SEEDS_OF_ELECTIONS,
    SEEDS_OF_HOMES,
    SEEDS_OF_OUTAGE,
    SETTINGS_DIFFER,
    TRUNCATED,
    TRUNCATED_LEVELS,
    Plan,
    draw_plan,
    usual_plan,
    with_homes,
)
from tests.simulation.schedule import replay_command, run_schedule, silenced
from tests.wheels import LoneStore

BLOCK = 200
BLOCKS = 500 if IS_LONG else 5
BLOCKS_OF_HOMES = 200 if IS_LONG else 2
BLOCKS_OF_ELECTIONS = 200 if IS_LONG else 5
BLOCKS_OF_OUTAGES = 8 if IS_LONG else 5
BROKE_ONCE = [
    (TRUNCATED, 510_924),
    (TRUNCATED_LEVELS, 520_803),
    (TRUNCATED_LEVELS, 520_971),
    (TRUNCATED_LEVELS, 521_009),
    (TRUNCATED_LEVELS, 521_028),
    (TRUNCATED, 700_046),
    (TRUNCATED, 700_072),
    (TRUNCATED, 700_208),
    (TRUNCATED, 720_001),
    (TRUNCATED, 720_134),
    (TRUNCATED, 17_357_003_708),
    (AT_LEAST_ONCE, 500_487),
    (AT_LEAST_ONCE, 511_166),
    (OUTAGE, 78_081_024),
    (OUTAGE, 78_081_166),
    (OUTAGE | {"absent": 0.3}, 78_081_494),
    (OUTAGE | {"absent": 0.3}, 78_081_890),
    (OUTAGE | {"absent": 0.3}, 91_081_245),
    (OUTAGE, 103_081_555),
    ({"absent": 0.7}, 203_100_032),
    (OUTAGE | {"absent": 0.3}, 303_081_706),
    ({}, 304_300_187),
    (TRUNCATED_LEVELS, 307_500_673),
    ({}, 309_100_044),
    (OUTAGE, 311_081_273),
    ({}, 312_300_213),
    ({}, 316_100_028),
    (OUTAGE | {"absent": 0.7}, 406_081_645),
    (OUTAGE, 412_081_990),
    (OUTAGE | {"stays_up": True, "absent": 0.3}, 432_081_317),
    (OUTAGE | {"stays_up": True}, 441_081_050),
    ({}, 501_300_144),
    ({}, 505_300_183),
]
"""Kinds and seeds of schedules that broke a promise at some time."""
QUICK_BLOCKS = 2
"""Blocks that `make test` runs; `make long` runs the others."""


@pytest.mark.parametrize("block", blocks(BLOCKS, QUICK_BLOCKS))
def test_every_promise_is_kept_in_every_schedule(block: int) -> None:
    outcomes = _assert_kept(_seeds(0, block))
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
        "kept",
    }


@pytest.mark.parametrize("block", blocks(4))
def test_promises_hold_where_settings_differ_and_replicas_restart(block: int) -> None:
    _assert_kept(
        _seeds(70_000, block, BLOCK // 4),
        lambda seed: replace(usual_plan(seed), **SETTINGS_DIFFER),
    )


@pytest.mark.parametrize("block", blocks(4))
def test_promises_hold_while_own_topics_cannot_be_written(
    block: int,
) -> None:
    _assert_kept(
        _seeds(90_000, block, BLOCK // 4),
        lambda seed: replace(usual_plan(seed), own_topics_fail=True, targets_fail=seed % 2 == 0),
    )


@pytest.mark.parametrize("block", blocks(3))
def test_a_log_that_cannot_be_written_holds_up_no_other_slice(
    block: int,
) -> None:
    _assert_kept(
        _seeds(140_000, block, 15),
        lambda seed: replace(
            with_homes(seed, usual_plan(seed), HOMES_AWAY), own_topics_fail=True, targets_fail=True
        ),
    )


@pytest.mark.parametrize("kind", KINDS, ids=["truncated", "levels", "recreated", "at_least_once"])
@pytest.mark.parametrize("block", blocks(4))
def test_promises_hold_with_truncated_logs_and_recreated_topics(
    block: int, kind: dict[str, Any]
) -> None:
    _assert_kept(_seeds(80_000, block, BLOCK // 8), lambda seed: replace(usual_plan(seed), **kind))


@pytest.mark.parametrize(("kind", "seed"), BROKE_ONCE)
def test_a_promise_that_a_schedule_broke_once_is_kept(kind: dict[str, Any], seed: int) -> None:
    _assert_kept(range(seed, seed + 1), lambda seed: replace(usual_plan(seed), **kind))


@pytest.mark.parametrize("block", blocks(BLOCKS_OF_OUTAGES))
def test_stored_records_are_delivered_when_retention_deletes_the_log(
    block: int,
) -> None:
    outcomes = _assert_kept(_seeds(SEEDS_OF_OUTAGE.start, block, BLOCK // 4))
    assert outcomes["lost"] > 0
    assert outcomes["freed"] > 0


@pytest.mark.parametrize("block", blocks(BLOCKS_OF_HOMES))
def test_promises_hold_where_ids_find_home(block: int) -> None:
    outcomes = _assert_kept(_seeds(SEEDS_OF_HOMES.start, block, BLOCK // 2))
    assert outcomes.keys() >= {"forwarded", "waits", "carried", "replaced", "cancelled", "fired"}


@pytest.mark.parametrize("block", blocks(BLOCKS_OF_ELECTIONS))
def test_promises_hold_where_owners_are_elected(block: int) -> None:
    _assert_kept(_seeds(SEEDS_OF_ELECTIONS.start, block, BLOCK // 4))


@pytest.mark.parametrize("more", [{"own_topics_fail": True}, AT_LEAST_ONCE, {"retention": True}])
def test_promises_hold_where_ids_find_home_and_something_else_is_amiss(
    more: dict[str, Any],
) -> None:
    _assert_kept(
        range(140_000, 140_020),
        lambda seed: replace(with_homes(seed, usual_plan(seed), HOMES_AWAY), **more),
    )


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
            _copy_of_one_moment(self._rng.choice(left), current)
        shutil.copytree(current, synced)
        self._left[node, place] = [current, synced]
        store = self._kind(current)
        self._closing.callback(_close_at_last, store)
        sync = store.sync

        def sync_and_copy(*, wait: bool = True) -> int:
            if self._rng.random() >= 0.2:
                return sync(wait=wait)
            durable = sync()
            shutil.rmtree(synced)
            _copy_of_one_moment(current, synced)
            return durable

        store.sync = sync_and_copy  # type: ignore[method-assign]
        return store


def _copy_of_one_moment(live: Path, copy: Path) -> None:
    """Copy the folder of a store that is still open. Threads of RocksDB change it at any time; a
    crash leaves what is there at one moment, so a copy during which it changed is taken again.
    """
    while True:
        before = _files_of(live)
        with suppress(shutil.Error):
            shutil.copytree(live, copy)
            if _files_of(live) == before:
                return
        shutil.rmtree(copy)


def _files_of(folder: Path) -> dict[Path, tuple[int, int]]:
    found = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            facts = path.stat()
            found[path] = (facts.st_size, facts.st_mtime_ns)
    return found


def _close_at_last(store: Store) -> None:
    with suppress(StoreError):  # it was closed in good order before
        store.close()


def _run_with(make_store: MakeStore, seeds: range) -> None:
    _assert_kept(seeds, lambda seed: _without_simulated_disks(usual_plan(seed)), make_store)


def _seeds(first: int, block: int, size: int = BLOCK) -> range:
    start = FIRST_SEED + first + block * size
    return range(start, start + size)


def _assert_kept(
    seeds: range,
    plan_of: Callable[[int], Plan] = draw_plan,
    make_store: MakeStore | None = None,
) -> Counter[str]:
    """Run a schedule for each seed and return the outcomes of all."""
    outcomes: Counter[str] = Counter()
    with silenced():
        for seed in seeds:
            verdict = run_schedule(seed, plan=plan_of(seed), make_store=make_store)
            replay = replay_command(seed) if plan_of is draw_plan else f"seed {seed}"
            assert verdict.broken is None, f"{verdict.broken}; see: {replay}"
            outcomes.update(verdict.outcomes)
    return outcomes


def _without_simulated_disks(plan: Plan) -> Plan:
    """Return the plan without what only simulated disks can do."""
    fields = {name: getattr(plan, name) for name in Plan.__slots__}
    return Plan(**fields | {"slots_fail": False, "retention": False})
