"""The phases of a slice go by one table, and nothing else moves them."""

from itertools import product

import pytest

from delayservice.slices.slice import OWNED, Phase, PhaseError, Step, next_phase

WAY = [Step.CLAIM, Step.FENCE, Step.TAKE, Step.SERVE, Step.RELEASE, Step.STEP_DOWN]


def test_the_way_of_an_owner_leads_from_replica_to_replica() -> None:
    phases = [Phase.REPLICA]
    for step in WAY:
        phases.append(next_phase(phases[-1], step))
    assert phases == [*Phase, Phase.REPLICA]


def test_every_phase_can_be_left_at_once() -> None:
    assert {next_phase(phase, Step.STEP_DOWN) for phase in Phase} == {Phase.REPLICA}


@pytest.mark.parametrize("step", Step, ids=lambda step: step.name)
def test_a_step_that_the_table_does_not_have_raises(step: Step) -> None:
    known = {
        Step.CLAIM: {Phase.REPLICA},
        Step.WITHDRAW: {Phase.CLAIMING},
        Step.FENCE: {Phase.CLAIMING},
        Step.TAKE: {Phase.TAKING},
        Step.SERVE: {Phase.TAKEN},
        Step.JOIN: OWNED,
        Step.RELEASE: {Phase.TAKING, Phase.TAKEN, Phase.OWNER},
        Step.STEP_DOWN: set(Phase),
    }[step]
    for phase in set(Phase) - known:
        with pytest.raises(PhaseError):
            next_phase(phase, step)
    for phase in known:
        next_phase(phase, step)


def test_only_a_committed_claim_leads_to_an_owner() -> None:
    ways = {
        (phase, step)
        for phase, step in product(Phase, Step)
        if phase not in OWNED and _leads_to_owned(phase, step)
    }
    assert ways == {(Phase.TAKING, Step.TAKE), (Phase.TAKING, Step.RELEASE)}


def _leads_to_owned(phase: Phase, step: Step) -> bool:
    try:
        return next_phase(phase, step) in OWNED
    except PhaseError:
        return False
