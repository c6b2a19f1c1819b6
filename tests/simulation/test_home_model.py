"""The rules by which ids find home hold in every interleaving; each mistake breaks them."""

from dataclasses import replace
from random import Random

import pytest

from tests.simulation.home_model.explore import FoundError, explore, walk
from tests.simulation.home_model.mutations import LIMITS, MUTATIONS, SETUPS, random_setup

STATES_MAX = 60_000
WALKS = 1_000


@pytest.mark.parametrize("name", SETUPS)
def test_every_record_has_one_right_outcome_in_every_interleaving(name: str) -> None:
    assert explore(SETUPS[name], STATES_MAX) > WALKS / 10


def test_every_record_has_one_right_outcome_in_long_random_walks() -> None:
    steps = 0
    for seed in range(WALKS):
        rng = Random(seed)
        steps += walk(random_setup(rng), rng)
    assert steps > 10 * WALKS


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_each_mistake_is_found(mutation: str) -> None:
    setup = MUTATIONS[mutation]
    if setup not in SETUPS.values():
        explore(setup, STATES_MAX)
    with pytest.raises(FoundError):
        explore(replace(setup, mutations=frozenset({mutation})), STATES_MAX)


@pytest.mark.parametrize("name", LIMITS)
def test_what_the_rules_can_not_hold_for_is_known(name: str) -> None:
    with pytest.raises(FoundError):
        explore(LIMITS[name], STATES_MAX)
