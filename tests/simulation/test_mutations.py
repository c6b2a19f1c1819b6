"""The simulation catches every mistake that the protocol's model caught, and more."""

from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.mutations import KINDS, LISTED, OTHERS, Mutation
from tests.simulation.plan import SETTINGS_DIFFER, draw_plan
from tests.simulation.schedule import run_schedule, silenced

SEEDS = 1_500
BENT: dict[str, dict[str, Any]] = {
    # Needs a copy that comes back after both its canceller and its time.
    "dead_copy_delivered": {"roll_window_ms": 15, "ids": 4, "records": 30, "poll_records": 1}
    | {"append": 0.15, "far": 0.3, "near": 0.7, "again": 0.0, "tick": 0.1, "crash": 0.05},
    # Needs a target that is missing when something far away is fired.
    "fired_and_parked_waits": {"targets_fail": True, "records": 30, "ids": 4, "recurring": 0.0}
    | {"roll_window_ms": 400, "far": 0.5, "again": 0.0, "actions": 200},
    "label_is_ignored": SETTINGS_DIFFER,
    "store_is_kept_over_a_change": SETTINGS_DIFFER,
}
"""Plans for mistakes that need the rarest of meetings."""


@pytest.mark.parametrize(
    "mutation", LISTED + OTHERS + KINDS, ids=lambda mutation: mutation.__name__
)
def test_the_mistake_is_caught(mutation: Mutation) -> None:
    with silenced(), mutation():
        for seed in range(SEEDS):
            plan = replace(draw_plan(seed), **BENT.get(mutation.__name__, {}))
            broken = run_schedule(seed, plan=plan).broken
            if broken is not None:
                assert broken.startswith("ViolationError"), broken
                return
    pytest.fail(f"{mutation.__name__} went unnoticed in {SEEDS} schedules")
