"""The simulation catches every mistake that the protocol's model caught, and more."""

import pytest

from tests.simulation.mutations import LISTED, OTHERS, Mutation
from tests.simulation.schedule import run_schedule, silenced

SEEDS = 1_500


@pytest.mark.parametrize("mutation", LISTED + OTHERS, ids=lambda mutation: mutation.__name__)
def test_the_mistake_is_caught(mutation: Mutation) -> None:
    with silenced(), mutation():
        for seed in range(SEEDS):
            broken = run_schedule(seed).broken
            if broken is not None:
                assert broken.startswith("ViolationError"), broken
                return
    pytest.fail(f"{mutation.__name__} went unnoticed in {SEEDS} schedules")
