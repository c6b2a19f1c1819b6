"""The phases of a slice and of a writer go by a table each, and nothing else moves them."""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from itertools import product
from typing import Any

import pytest

from delayservice.slices.slice import OWNED, SLICE_STEPS, Phase, PhaseError, Step, next_phase
from delayservice.slices.writer import WRITER_STEPS, WriterPhase, WriterStep

WAY = [Step.CLAIM, Step.FENCE, Step.TAKE, Step.SERVE, Step.RELEASE, Step.STEP_DOWN]


def test_the_way_of_an_owner_leads_from_replica_to_replica() -> None:
    phases = [Phase.REPLICA]
    for step in WAY:
        phases.append(next_phase(SLICE_STEPS, phases[-1], step))
    assert phases == [*Phase, Phase.REPLICA]


def test_every_phase_can_be_left_at_once() -> None:
    assert {next_phase(SLICE_STEPS, phase, Step.STEP_DOWN) for phase in Phase} == {Phase.REPLICA}


def _leads_only_from(
    known: AbstractSet[Any], table: Mapping[Any, Any], phases: Iterable[Any], step: Any
) -> None:
    for phase in phases:
        if phase in known:
            next_phase(table, phase, step)
        else:
            with pytest.raises(PhaseError):
                next_phase(table, phase, step)


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
    _leads_only_from(known, SLICE_STEPS, Phase, step)


def test_only_a_committed_claim_leads_to_an_owner() -> None:
    ways = {
        (phase, step)
        for phase, step in product(Phase, Step)
        if phase not in OWNED and _leads_to_owned(phase, step)
    }
    assert ways == {(Phase.TAKING, Step.TAKE), (Phase.TAKING, Step.RELEASE)}


def _leads_to_owned(phase: Phase, step: Step) -> bool:
    try:
        return next_phase(SLICE_STEPS, phase, step) in OWNED
    except PhaseError:
        return False


@pytest.mark.parametrize("step", WriterStep, ids=lambda step: step.name)
def test_a_writer_sends_and_commits_only_when_it_is_open_and_no_commit_is_under_way(
    step: WriterStep,
) -> None:
    is_open = {WriterPhase.IDLE, WriterPhase.SENDING}
    known = {
        WriterStep.OPEN: {WriterPhase.NONE},
        WriterStep.OPENED: {WriterPhase.OPENING},
        WriterStep.REFUSED: {WriterPhase.OPENING},
        WriterStep.SEND: is_open,
        WriterStep.COMMIT: is_open,
        WriterStep.COMMITTED: {WriterPhase.COMMITTING},
        WriterStep.LOSE: {*is_open, WriterPhase.COMMITTING},
    }[step]
    _leads_only_from(known, WRITER_STEPS, WriterPhase, step)
