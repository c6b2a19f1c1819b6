"""Application of checkpoints that a node reads back: prunes the stores, measures the lag."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from delayservice.base import faults
from delayservice.base.clock import Clock
from delayservice.engine.checkpoint import (
    Checkpoint,
    WrongSecretError,
    check_secret,
    decode_checkpoint_of,
)
from delayservice.engine.electability import Lag
from delayservice.engine.ports import Checkpoints, ReadBack
from delayservice.slices.lane import Lane


class Follower:
    """Reader of one slice's checkpoints, which applies them to the lanes of owner and replica.

    ``clock`` is monotonic. ``refusal`` stays until the node is restarted with the right secret,
    even when the slice is served with a known one again: records signed with the unknown one may
    still be pending.
    """

    def __init__(
        self, slice_no: int, checkpoints: Checkpoints, clock: Clock, secrets: Collection[str]
    ) -> None:
        self._slice_no = slice_no
        self._checkpoints = checkpoints
        self._clock = clock
        self._secrets = secrets
        self.refusal = ""
        self._last: ReadBack | None = None
        # Whether ``newest`` may be compared with: a consumer that has just begun reads old ones.
        self._is_newest = False
        self.newest: Checkpoint | None = None
        self._lag = Lag()

    # Offsets that retention has deleted before they were settled, by the newest checkpoint.
    @property
    def lost_offsets(self) -> int:
        shards = () if self.newest is None else self.newest.shards.values()
        return sum(shard.lost[-1].in_all for shard in shards if shard.lost)

    def stepped_down(self, lanes: Mapping[str, Lane], claim: int) -> None:
        """Apply the newest checkpoint as a replica does, if an owner after ``claim`` wrote it.
        While this node was the owner, the checkpoint only pruned its stores.
        """
        newest = self.newest
        if newest is not None and newest.tenure.claim > claim:
            self._follow(newest, lanes, is_owner=False)

    def again(self) -> None:
        """Let the next ``prune`` apply the newest checkpoint again, because lanes have changed."""
        self._last = None

    def prune(self, lanes: Mapping[str, Lane], *, is_owner: bool) -> ReadBack | None:
        """Apply the newest checkpoint if that was not done: prune the stores; unless ``is_owner``,
        adopt its contracts and cursors too. Return it; None: no newer one, or refused.

        Raises ``KafkaEdgeError`` (no checkpoint of this slice), or ``WrongSecretError`` (the slice
        is refused from now on).
        """
        if self.refusal:
            return None
        self._is_newest = self._checkpoints.is_newest(self._slice_no)  # asked before it is read
        read_back = self._checkpoints.read_back(self._slice_no)
        if read_back is None or read_back is self._last:
            return None
        self._last = read_back
        faults.point("before_prune")
        checkpoint = decode_checkpoint_of(self._slice_no, read_back.data)
        try:
            check_secret(checkpoint, self._secrets)
        except WrongSecretError as wrong:
            self.refusal = str(wrong)
            raise
        self._follow(checkpoint, lanes, is_owner=is_owner)
        faults.point("after_prune")
        return read_back

    def _follow(self, checkpoint: Checkpoint, lanes: Mapping[str, Lane], *, is_owner: bool) -> None:
        self.newest = checkpoint
        # After a topic was deleted and created again, the checkpoint has only the old shard.
        known = {
            topic: shard
            for topic, shard in checkpoint.shards.items()
            if topic in lanes and lanes[topic].topic_id == shard.topic_id
        }
        self._lag.heard({t: shard.cursor.offset for t, shard in known.items()}, self._now_s)
        for topic, shard in known.items():
            lane = lanes[topic]
            cursor = lane.clamp(shard.cursor, shard.last_read)
            lane.store.prune(cursor)
            if not is_owner:
                lane.adopt(shard.contracts)
                lane.follow(cursor)

    def lag_s(self, lanes: Mapping[str, Lane], log_ends: Mapping[str, int]) -> float:
        """Return the lag of a replica's copies, seconds; infinite if unknown."""
        if not lanes or self.refusal:
            return math.inf
        if self.newest is None and self._checkpoints.is_unserved(self._slice_no):
            self._lag.never_served(self._now_s)
        elif not self._is_newest:
            return math.inf
        stored = {topic: lane.shard.stored for topic, lane in lanes.items()}
        return self._lag.lag_s(stored, self._now_s, log_ends)

    @property
    def _now_s(self) -> float:
        return self._clock.monotonic_s()
