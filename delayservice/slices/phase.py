"""Phases of a slice on one node, from replica to owner and back, and the steps between them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class Phase(Enum):
    REPLICA = "replica"
    # The next commit carries the claim of this node's writer.
    CLAIMING = "claiming"
    # The claim is committed; former writers are being fenced, and their last checkpoint read.
    TAKING = "taking"
    # The next commit carries this owner's first checkpoint, or the first with an added shard.
    TAKEN = "taken"
    OWNER = "owner"
    # The next commit carries the release.
    RELEASING = "releasing"


class Step(Enum):
    CLAIM = "the ensemble wants this node to own it"
    WITHDRAW = "the claim is not wanted any more, and no commit carries it"
    FENCE = "the claim is committed"
    TAKE = "the last checkpoint of the previous owner was read"
    SERVE = "the first checkpoint is committed"
    JOIN = "a shard was added, or begins anew: its contract is committed before it is used"
    RELEASE = "this node is not to own it, or can't serve it"
    STEP_DOWN = "the release is committed, or the writer is lost"


class PhaseError(Exception):
    """Step that is not allowed in the present phase of the slice: a bug in this program."""


_NEXT: Final[Mapping[tuple[Phase, Step], Phase]] = {
    (Phase.REPLICA, Step.CLAIM): Phase.CLAIMING,
    (Phase.CLAIMING, Step.WITHDRAW): Phase.REPLICA,
    (Phase.CLAIMING, Step.FENCE): Phase.TAKING,
    (Phase.TAKING, Step.TAKE): Phase.TAKEN,
    (Phase.TAKEN, Step.SERVE): Phase.OWNER,
    (Phase.OWNER, Step.JOIN): Phase.TAKEN,
    # While the first checkpoint or the release is due, another shard does not change the phase.
    (Phase.TAKEN, Step.JOIN): Phase.TAKEN,
    (Phase.RELEASING, Step.JOIN): Phase.RELEASING,
    (Phase.TAKING, Step.RELEASE): Phase.RELEASING,
    (Phase.TAKEN, Step.RELEASE): Phase.RELEASING,
    (Phase.OWNER, Step.RELEASE): Phase.RELEASING,
    **{(phase, Step.STEP_DOWN): Phase.REPLICA for phase in Phase},
}

# Lanes advance a cursor themselves, and ignore those of checkpoints read back.
OWNED: Final = frozenset({Phase.TAKEN, Phase.OWNER, Phase.RELEASING})
# May end with a release, which follows a last checkpoint.
SERVED: Final = frozenset({Phase.TAKEN, Phase.OWNER})
# Before a commit of this ownership's first checkpoint, or the first with an added shard.
ON_THE_WAY: Final = frozenset({Phase.CLAIMING, Phase.TAKING, Phase.TAKEN})


def next_phase(phase: Phase, step: Step) -> Phase:
    found = _NEXT.get((phase, step))
    if found is None:
        raise PhaseError(f"no step {step.name} leads from {phase.name}")
    return found
