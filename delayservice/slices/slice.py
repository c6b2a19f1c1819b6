"""State of one slice on one node: its lanes, and its phase from replica to owner.

The worker's loop calls it; it has no client, thread or timer.
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
    """State of one slice. Only the thread of the worker's loop changes it.

    Attributes:
        lanes: lanes of its shards that are served here, by delay topic.
        phase: its phase on this node, from replica to owner.
        epoch: number of this node's ownership; 0 before the first.
        turn: number of this process's newest claim of the slice; it rises over all claims of the
            process. -1 before the first.
        claim: offset of this node's claim in the claims topic, from its take-over on; -1 before.
        fenced: writers whose claims may be deleted once this owner's first checkpoint is committed.
        uncommitted: sums, for metrics, over its outputs since the last commit.
        failures: number of failed commits in a row.
        setbacks: number of failed take-overs in a row.
        trouble: why it could not be served last time, as text for people; empty: no trouble.
        damaged_logs: first offset of the damaged batch at which the reading of a log stands still,
            and a text about it for people, by delay topic.
    """

    def __init__(
        self, number: int, flow: Flow, follower: Follower, copies: CopyKeeper | None
    ) -> None:
        """Create a slice as a replica. ``flow``: limits that all lanes share; ``follower``: applies
        its checkpoints; ``copies``: keeps digests of its copies, None: digests are off.
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
        self.uncommitted = Tally()
        self.failures = 0
        self.setbacks = 0
        self.trouble = ""
        self.damaged_logs: dict[str, tuple[int, str]] = {}
        self.stated: dict[str, Contracts] = {}
        """Contracts of the newest committed checkpoint, by delay topic, kept until the next commit,
        which may add contracts."""
        self._unserved: dict[str, ShardCheckpoint] = {}
        self._commits = 0

    def move(self, step: Step) -> None:
        """Enter the phase to which ``step`` leads. Raise ``PhaseError`` and change nothing if the
        step is not allowed in the present phase.
        """
        self.phase = next_phase(self.phase, step)

    @property
    def is_owner(self) -> bool:
        """Return whether this node settles its records now."""
        return self.phase is Phase.OWNER

    @property
    def places(self) -> list[Place]:
        """Return topic and partition of each of its shards that is served here."""
        return [lane.place for lane in self.lanes.values()]

    @property
    def stored(self) -> dict[str, int]:
        """Return S of each shard, by delay topic."""
        return {topic: lane.shard.stored for topic, lane in self.lanes.items()}

    @property
    def damaged(self) -> int:
        """Return the number of key ranges of the copies that the last full reads could not read."""
        return 0 if self.copies is None else self.copies.digests.damaged

    @property
    def alarm(self) -> str:
        """Return what is wrong with it, as text for people; empty: nothing."""
        return self.trouble or "; ".join(why for _, why in self.damaged_logs.values())

    def lag_s(self, log_ends: Mapping[str, int]) -> float:
        """Return by how much this node's copies are behind the owner's, seconds; 0 on the owner,
        infinite if unknown. ``log_ends``: last known end offsets of the logs, by delay topic.
        """
        return 0.0 if self.is_owner else self.follower.lag_s(self.lanes, log_ends)

    # --- commit --------------------------------------------------------------------------------

    @property
    def is_staged(self) -> bool:
        """Return whether a commit would move the cursor of any of its shards."""
        lanes = self.lanes.values()
        return any(lane.shard.owned and lane.shard.is_staged for lane in lanes)

    @property
    def is_filling(self) -> bool:
        """Return whether storing will soon have to wait for a commit of the cursors."""
        return any(lane.shard.is_filling for lane in self.lanes.values())

    def checkpoint(self, node_id: str, writer: str, secret_fingerprint: str) -> bytes:
        """Return the encoded checkpoint that a commit now would carry, with all shards of the
        slice, and raise the number of commits. ``writer``: transactional id;
        ``secret_fingerprint``: hash of the cluster secret that signs.
        """
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
        """Make the cursors that the last commit carried the committed ones, in all lanes.
        ``now_ms``: now, epoch milliseconds.
        """
        if self.uncommitted.records:  # a first checkpoint proves nothing: it carries no outputs
            self.failures = 0
        self.stated.clear()
        for lane in self.lanes.values():
            lane.committed()
        self.flow.commit(now_ms)

    # --- ownership -----------------------------------------------------------------------------

    def taken_over(self, taken: Taken, epoch_min: int) -> None:
        """Enter the phase ``TAKEN`` with what the take-over found, and an epoch above the former
        owner's, ``epoch_min`` at least. New checkpoints keep the cursors of shards that are not
        served here; otherwise their next owner would deliver every record again.
        """
        checkpoint = taken.checkpoint
        self.claim = taken.claim
        self.fenced = taken.fenced
        self.epoch = max(epoch_min, 1 + (checkpoint.epoch if checkpoint else 0))
        self._unserved = dict(checkpoint.shards) if checkpoint else {}
        self.move(Step.TAKE)

    def known_of(self, topic: str) -> ShardCheckpoint | None:
        """Return the shard's part of the last checkpoint before its lane was taken over here; None:
        there is no such part.
        """
        return self._unserved.get(topic)

    def passed_of(self, lane: AnyLane) -> int:
        """Return H of a shard as it was last committed: by this owner, or by the one before."""
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
        """Close and remove the lane of ``topic``; new checkpoints of the slice keep its cursor."""
        lane = self.lanes.pop(topic)
        self.damaged_logs.pop(topic, None)
        if lane.shard.owned:
            self._unserved[topic] = lane.checkpoint()
        lane.close()
