"""``python -m tests.simulation``: replay one schedule, or run many."""

# ruff: noqa: T201  # a command prints

from __future__ import annotations

import argparse
import secrets
import sys
import time
import traceback

from tests.simulation.plan import SEEDS, draw_plan
from tests.simulation.schedule import replay_command, run_schedule, silenced
from tests.simulation.world import World


def replay(seed: int, *, trace: bool) -> int:
    """Run one seed; where it breaks, say why."""
    world = World(seed, draw_plan(seed), print if trace else None)
    print(world.plan)
    try:
        world.run()
    except Exception:  # noqa: BLE001  # an unforeseen error is a finding like any other
        traceback.print_exc()
        return 1
    print(f"seed {seed}: ok, {world.oracle.commits} commits, {world.oracle.outcomes}")
    return 0


def run_many(first: int, runs: int) -> int:
    """Run seeds from ``first`` on and report what broke."""
    started_s = time.monotonic()
    broken = 0
    for seed in range(first, first + runs):
        verdict = run_schedule(seed)
        if verdict.broken is not None:
            broken += 1
            print(f"{replay_command(seed)}  # {verdict.broken}", flush=True)
    elapsed_s = time.monotonic() - started_s
    print(f"{runs} schedules, {broken} broken, {runs / max(elapsed_s, 0.001):.0f} a second")
    return 1 if broken else 0


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument(
        "--seed",
        type=int,
        help="replay this schedule, or start here; default of a run: a fresh seed",
    )
    parser.add_argument("--trace", action="store_true", help="print every event of the replay")
    parser.add_argument("--runs", type=int, help="run this many schedules")
    given = parser.parse_args()
    with silenced():
        if given.runs is None:
            return replay(given.seed or 0, trace=given.trace)
        first = given.seed or secrets.randbelow(SEEDS) * SEEDS
        print(f"from seed {first} on")
        return run_many(first, given.runs)


if __name__ == "__main__":
    sys.exit(main())
