"""State of one slice on one node: its lanes, and its phase from replica to owner and back.

The worker's loop calls it; it has no client, thread or timer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

from delayservice.contract.contracts import Contracts
from delayservice.engine.checkpoint import Checkpoint, ShardCheckpoint, encode_checkpoint
from delayservice.engine.claims import Tenure
from delayservice.engine.flow import Flow
from delayservice.engine.outcome import OutputCounters
from delayservice.engine.ports import Bounds, Place
from delayservice.slices.copies import CopyKeeper
from delayservice.slices.follow import Follower
from delayservice.slices.lane import Lane


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
    """Step that is not allowed in the present phase of the slice or writer: a bug in this
    program.
    """


SLICE_STEPS: Final[Mapping[tuple[Phase, Step], Phase]] = {
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

# Phases in which lanes advance a cursor themselves, and ignore those of checkpoints read back.
OWNED: Final = frozenset({Phase.TAKEN, Phase.OWNER, Phase.RELEASING})
# Phases that may end with a release, which follows a last checkpoint.
SERVED: Final = frozenset({Phase.TAKEN, Phase.OWNER})
# Phases before a commit of this ownership's first checkpoint, or the first with an added shard.
ON_THE_WAY: Final = frozenset({Phase.CLAIMING, Phase.TAKING, Phase.TAKEN})


AnyPhase = TypeVar("AnyPhase", bound=Enum)
AnyStep = TypeVar("AnyStep", bound=Enum)


def next_phase(
    table: Mapping[tuple[AnyPhase, AnyStep], AnyPhase], phase: AnyPhase, step: AnyStep
) -> AnyPhase:
    found = table.get((phase, step))
    if found is None:
        raise PhaseError(f"no step {step.name} leads from {phase.name}")
    return found


@dataclass(frozen=True, slots=True)
class Taken:
    """What a take-over found about one slice. After ``checkpoint`` no former writer can write
    another; None: the slice was never served. Claims of ``fenced`` writers may be deleted once
    this owner's first checkpoint is committed.
    """

    claim: int
    checkpoint: Checkpoint | None
    bounds: Mapping[Place, Bounds]
    fenced: frozenset[str]


class Slice:
    """State of one slice. Only the thread of the worker's loop changes it.

    ``epoch`` numbers this node's ownership, ``turn`` this process's newest claim over all slices,
    ``claim`` is its offset; -1: none. Claims of ``fenced`` writers may be deleted once this owner's
    first checkpoint is committed. ``damaged_logs``: by delay topic, the offset of a damaged batch
    at which reading stands still, and a text. ``not_taken``: by delay topic, why this owner has not
    taken over its shard yet; empty until it has been asked twice.
    """

    def __init__(
        self, number: int, flow: Flow, follower: Follower, copies: CopyKeeper | None
    ) -> None:
        self.number = number
        self.flow = flow
        self.follower = follower
        self.copies = copies
        self.lanes: dict[str, Lane] = {}
        self.phase = Phase.REPLICA
        self.epoch = 0
        self.turn = -1
        self.claim = -1
        self.fenced: frozenset[str] = frozenset()
        self.uncommitted = OutputCounters()
        self.failures = 0
        self.setbacks = 0
        self.trouble = ""
        self.troubled_s = -math.inf
        self.damaged_logs: dict[str, tuple[int, str]] = {}
        self.not_taken: dict[str, str] = {}
        # Contracts of the newest committed checkpoint by delay topic, kept until the next commit,
        # which may add contracts.
        self.stated: dict[str, Contracts] = {}
        self._unserved: dict[str, ShardCheckpoint] = {}
        self._commits = 0

    def move(self, step: Step) -> None:
        """Enter the phase to which ``step`` leads; raise ``PhaseError`` and change nothing if it
        is not allowed.
        """
        self.phase = next_phase(SLICE_STEPS, self.phase, step)

    @property
    def is_owner(self) -> bool:
        return self.phase is Phase.OWNER

    @property
    def places(self) -> list[Place]:
        return [lane.place for lane in self.lanes.values()]

    @property
    def stored(self) -> dict[str, int]:
        return {topic: lane.shard.stored for topic, lane in self.lanes.items()}

    @property
    def damaged(self) -> int:
        return 0 if self.copies is None else self.copies.digests.damaged

    @property
    def alarm(self) -> str:
        damaged = [why for _, why in self.damaged_logs.values()]
        return self.trouble or "; ".join(filter(None, [*damaged, *self.not_taken.values()]))

    def lag_s(self, log_ends: Mapping[str, int]) -> float:
        """Return the lag of this node's copies, seconds; 0 on the owner, infinite if unknown."""
        return 0.0 if self.is_owner else self.follower.lag_s(self.lanes, log_ends)

    # --- commit --------------------------------------------------------------------------------

    @property
    def is_staged(self) -> bool:
        lanes = self.lanes.values()
        return any(lane.shard.owned and lane.shard.is_staged for lane in lanes)

    @property
    def is_filling(self) -> bool:
        return any(lane.shard.is_filling for lane in self.lanes.values())

    def checkpoint(self, node_id: str, writer: str, secret_fingerprint: str) -> bytes:
        """Return the encoded checkpoint that a commit now would carry, and count the commit."""
        self._commits += 1
        shards = {t: lane.checkpoint() for t, lane in self.lanes.items() if lane.shard.owned}
        return encode_checkpoint(
            Checkpoint(
                slice_no=self.number,
                node_id=node_id,
                epoch=self.epoch,
                secret_fingerprint=secret_fingerprint,
                shards=self._unserved | shards,
                commit=self._commits,
                tenure=Tenure(writer, self.claim),
            )
        )

    def committed(self, now_ms: int) -> None:
        if self.uncommitted.records:  # a first checkpoint proves nothing: it carries no outputs
            self.failures = 0
        self.stated.clear()
        for lane in self.lanes.values():
            lane.committed()
        self.flow.commit(now_ms)

    # --- ownership -----------------------------------------------------------------------------

    def taken_over(self, taken: Taken, epoch_min: int) -> None:
        """Enter the phase ``TAKEN``, with an epoch above the former owner's. New checkpoints
        keep the cursors of shards that are not served here; else their next owner would deliver
        all again.
        """
        checkpoint = taken.checkpoint
        self.claim = taken.claim
        self.fenced = taken.fenced
        self.epoch = max(epoch_min, 1 + (checkpoint.epoch if checkpoint else 0))
        self._unserved = dict(checkpoint.shards) if checkpoint else {}
        self.move(Step.TAKE)

    @property
    def is_served_elsewhere(self) -> bool:
        newest = self.follower.newest
        return self.phase is Phase.REPLICA and bool(newest and newest.tenure.claim > self.claim)

    def known_of(self, topic: str) -> ShardCheckpoint | None:
        """Return the shard's part of the checkpoint that this node took over from."""
        return self._unserved.get(topic)

    def passed_of(self, lane: Lane) -> int:
        """Return H of a shard as last committed: by this owner, or by the one before."""
        if lane.shard.owned:
            return lane.standing[0].offset
        known = self._unserved.get(lane.topic)
        is_same = known is not None and known.topic_id == lane.topic_id
        return known.cursor.offset if known is not None and is_same else 0

    def step_down(self) -> None:
        """Become a replica: return to the committed cursors, stop settling, go on storing."""
        self.move(Step.STEP_DOWN)
        self.flow.abort()
        self.uncommitted.clear()
        self.not_taken.clear()
        for topic, lane in self.lanes.items():
            if lane.shard.owned:
                if topic in self.stated:
                    lane.adopt(self.stated[topic])
                lane.verdicts.step_down()
                lane.step_down()
        self.stated.clear()
        self.follower.stepped_down(self.lanes, self.claim)

    # --- shards --------------------------------------------------------------------------------

    def put_down(self, topic: str) -> None:
        """Close and remove a lane; new checkpoints of the slice keep its cursor."""
        lane = self.lanes.pop(topic)
        self.damaged_logs.pop(topic, None)
        self.not_taken.pop(topic, None)
        if lane.shard.owned:
            self._unserved[topic] = lane.checkpoint()
        lane.close()
