"""One slice on one node: its lanes, and how far it is on the way to being owned.

The worker's loop drives it; it has no client, thread or timer of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from delayservice.contract.contracts import Contracts
from delayservice.engine.checkpoint import Checkpoint, ShardCheckpoint, encode_checkpoint
from delayservice.engine.claims import Tenure
from delayservice.engine.flow import Flow
from delayservice.engine.outcome import Tally
from delayservice.engine.ports import Place
from delayservice.slices.any_lane import AnyLane
from delayservice.slices.copies import CopyKeeper
from delayservice.slices.follower import Follower
from delayservice.slices.phase import Phase, Step, next_phase
from delayservice.slices.take_over import Taken


class Slice:
    """The state of one slice. Single-threaded, as the loop that owns it.

    Attributes:
        lanes: its shards that are served here, by delay topic.
        phase: where it stands.
        turn: of the newest own claim: one that was released, or gave no answer, has a lower one.
        claim: offset of the own claim while it is owned; -1 before the first.
        uncommitted: what was staged since the last commit.
        setbacks: take-overs in a row that failed.
        trouble: why it could not be served the last time, for people; empty: all is well.
    """

    def __init__(
        self, number: int, flow: Flow, follower: Follower, copies: CopyKeeper | None
    ) -> None:
        """``flow``: limits that all lanes share; ``copies``: compares and repairs them."""
        self.number = number
        self.flow = flow
        self.follower = follower
        self.copies = copies
        self.lanes: dict[str, AnyLane] = {}
        self.phase = Phase.REPLICA
        self.epoch = 0
        self.turn = -1
        self.claim = -1
        self.fenced: frozenset[str] = frozenset()
        self.is_upgrade = False
        self.uncommitted = Tally()
        self.failures = 0
        self.setbacks = 0
        self.trouble = ""
        self.stated: dict[str, Contracts] = {}
        """By delay topic, the contracts of the newest checkpoint in the log, until one is committed
        that may extend them."""
        self._unserved: dict[str, ShardCheckpoint] = {}
        self._commits = 0

    def move(self, step: Step) -> None:
        """Go to the next phase, or raise ``PhaseError`` and change nothing."""
        self.phase = next_phase(self.phase, step)

    @property
    def is_owner(self) -> bool:
        """Return whether its records are settled here."""
        return self.phase is Phase.OWNER

    @property
    def places(self) -> list[Place]:
        """Return the shards that are served here."""
        return [lane.place for lane in self.lanes.values()]

    @property
    def stored(self) -> dict[str, int]:
        """Return S of each shard, by delay topic."""
        return {topic: lane.shard.stored for topic, lane in self.lanes.items()}

    @property
    def damaged(self) -> int:
        """Return how many stretches of the copies the last scan of the disk could not read."""
        return 0 if self.copies is None else self.copies.digests.damaged

    def lag_s(self, log_ends: Mapping[str, int]) -> float:
        """Return the lag of this node's copy, seconds; ``log_ends``: by delay topic, if known."""
        return 0.0 if self.is_owner else self.follower.lag_s(self.lanes, log_ends)

    # --- commit --------------------------------------------------------------------------------

    @property
    def is_staged(self) -> bool:
        """Return whether a commit would move a cursor."""
        lanes = self.lanes.values()
        return any(lane.shard.owned and lane.shard.is_staged for lane in lanes)

    @property
    def is_filling(self) -> bool:
        """Return whether a commit is wanted soon, although it may carry nothing but cursors."""
        return any(lane.shard.is_filling for lane in self.lanes.values())

    def checkpoint(self, node_id: str, writer: str, secret_fingerprint: str) -> bytes:
        """Return what a commit now says of all shards."""
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
        """Note that all that was staged is committed."""
        self.failures = 0
        self.stated.clear()
        for lane in self.lanes.values():
            lane.committed()
        self.flow.commit(now_ms)

    def aborted(self) -> None:
        """Note that the transaction was aborted for certain: the same is settled again."""
        for lane in self.lanes.values():
            lane.aborted()
        self.flow.abort()
        self.uncommitted.clear()

    # --- ownership -----------------------------------------------------------------------------

    def taken_over(self, taken: Taken, epoch_min: int) -> None:
        """Go on from the last checkpoint. What is not served here keeps its cursor, or its next
        owner would deliver it all again.
        """
        checkpoint = taken.checkpoint
        self.claim = taken.claim
        self.fenced = taken.fenced
        self.is_upgrade = taken.is_upgrade
        self.epoch = max(epoch_min, 1 + (checkpoint.epoch if checkpoint else 0))
        self._unserved = dict(checkpoint.shards) if checkpoint else {}
        self.move(Step.TAKE)

    def known_of(self, topic: str) -> ShardCheckpoint | None:
        """Return what the last checkpoint before this ownership says of a shard."""
        return self._unserved.get(topic)

    def step_down(self) -> None:
        """Settle no more, drop what was not committed, and go on storing."""
        self.move(Step.STEP_DOWN)
        self.flow.abort()
        self.uncommitted.clear()
        for topic, lane in self.lanes.items():
            if lane.shard.owned:
                if topic in self.stated:
                    lane.adopt(self.stated[topic])
                lane.step_down()
        self.stated.clear()
        self.follower.stepped_down(self.lanes, self.claim)

    # --- shards --------------------------------------------------------------------------------

    def put_down(self, topic: str) -> None:
        """Let go of a shard; its cursor stays as committed."""
        lane = self.lanes.pop(topic)
        if lane.shard.owned:
            self._unserved[topic] = lane.checkpoint()
        lane.close()
