"""One slice on one node: its lanes and its phase.

The worker's loop calls it; it has no client, thread or timer of its own.
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
    """State of one slice. Single-threaded, as the loop that owns it.

    Attributes:
        lanes: its shards that are served here, by delay topic.
        phase: its phase on this node, from replica to owner.
        epoch: number of this node's ownership; 0 before the first.
        turn: number of the newest claim by this process, higher than that of every claim before.
        claim: offset of this node's claim, from its take-over on; -1 before the first.
        fenced: writers whose claims may be deleted once the first checkpoint is committed.
        is_upgrade: whether a node of version 1 served it before; see ``take_over.Taken``.
        uncommitted: tally of the outputs staged since the last commit.
        failures: number of failed commits in a row.
        setbacks: number of failed take-overs in a row.
        trouble: why it could not be served last time, as text for people; empty: no trouble.
    """

    def __init__(
        self, number: int, flow: Flow, follower: Follower, copies: CopyKeeper | None
    ) -> None:
        """Create a replica. ``flow``: limits shared by all lanes; ``copies``: keeper of the copies,
        None: they are not compared.
        """
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
        """Contracts of the newest committed checkpoint, by delay topic, kept until the next commit,
        which may extend them."""
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
        """Return the number of key ranges that the last scans of the copies could not read."""
        return 0 if self.copies is None else self.copies.digests.damaged

    def lag_s(self, log_ends: Mapping[str, int]) -> float:
        """Return the lag of this node's copies, seconds; 0 on the owner. ``log_ends``: known ends
        of logs, by delay topic.
        """
        return 0.0 if self.is_owner else self.follower.lag_s(self.lanes, log_ends)

    # --- commit --------------------------------------------------------------------------------

    @property
    def is_staged(self) -> bool:
        """Return whether a commit would move a cursor."""
        lanes = self.lanes.values()
        return any(lane.shard.owned and lane.shard.is_staged for lane in lanes)

    @property
    def is_filling(self) -> bool:
        """Return whether storing will soon have to wait for a commit of the cursors."""
        return any(lane.shard.is_filling for lane in self.lanes.values())

    def checkpoint(self, node_id: str, writer: str, secret_fingerprint: str) -> bytes:
        """Return the encoded checkpoint of all shards for a commit now, and count it."""
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
        """Make the staged state of all lanes the committed one. ``now_ms``: epoch milliseconds."""
        self.failures = 0
        self.stated.clear()
        for lane in self.lanes.values():
            lane.committed()
        self.flow.commit(now_ms)

    def aborted(self) -> None:
        """Drop the staged state of all lanes: the transaction was certainly aborted."""
        for lane in self.lanes.values():
            lane.aborted()
        self.flow.abort()
        self.uncommitted.clear()

    # --- ownership -----------------------------------------------------------------------------

    def taken_over(self, taken: Taken, epoch_min: int) -> None:
        """Own the slice from its last checkpoint on. Shards that are not served here keep their
        cursor in new checkpoints; otherwise their next owner would deliver every record again.
        """
        checkpoint = taken.checkpoint
        self.claim = taken.claim
        self.fenced = taken.fenced
        self.is_upgrade = taken.is_upgrade
        self.epoch = max(epoch_min, 1 + (checkpoint.epoch if checkpoint else 0))
        self._unserved = dict(checkpoint.shards) if checkpoint else {}
        self.move(Step.TAKE)

    def known_of(self, topic: str) -> ShardCheckpoint | None:
        """Return a shard's part of the last checkpoint before this ownership; None: it has none."""
        return self._unserved.get(topic)

    def step_down(self) -> None:
        """Become a replica: drop staged state, stop settling, and continue storing."""
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
        """Close and remove a shard; new checkpoints keep its cursor."""
        lane = self.lanes.pop(topic)
        if lane.shard.owned:
            self._unserved[topic] = lane.checkpoint()
        lane.close()
