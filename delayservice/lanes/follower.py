"""What a node makes of the checkpoint as read back: prune, and know how far behind it is."""

from __future__ import annotations

import math
from collections.abc import Mapping

from delayservice import faults
from delayservice.core.checkpoint import Checkpoint, decode_checkpoint
from delayservice.core.lag import Lag
from delayservice.lanes.lane import Lane
from delayservice.lanes.ports import Checkpoints, Clock, ReadBack


class Follower:
    """One slice's checkpoint as it comes back from Kafka: to its owner, and to every replica.

    Args:
        slice_no: the slice.
        checkpoints: where they are read.
        clock: for the lag.
    """

    def __init__(self, slice_no: int, checkpoints: Checkpoints, clock: Clock) -> None:
        self._slice_no = slice_no
        self._checkpoints = checkpoints
        self._clock = clock
        self._last: ReadBack | None = None
        self._newest: Checkpoint | None = None
        self._is_new: bool | None = None
        self._lag = Lag()

    @property
    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that was read back; None before the first."""
        return self._newest

    def again(self) -> None:
        """There are other lanes now, of which the newest checkpoint speaks as well."""
        self._last = None

    def prune(self, lanes: Mapping[str, Lane], *, is_owner: bool) -> ReadBack | None:
        """Forget what a checkpoint that is news has settled (rule 5): one path for the owner and
        for every replica, which also reads on by its contracts.

        Returns:
            It, if there was one.
        """
        read_back = self._checkpoints.read_back(self._slice_no)
        if read_back is None or read_back is self._last:
            return None
        self._last = read_back
        self._newest = decode_checkpoint(read_back.data)
        shards = self._newest.shards
        self._lag.heard({t: known.cursor.offset for t, known in shards.items()}, self._now_s)
        faults.point("before_prune")
        for topic, known in shards.items():
            lane = lanes.get(topic)
            if lane is None or lane.topic_id != known.topic_id:
                continue
            lane.store.prune(known.cursor)
            if not is_owner:
                lane.adopt(known.contracts)
                lane.follow(known.cursor)
        faults.point("after_prune")
        return read_back

    def lag_s(self, lanes: Mapping[str, Lane]) -> float:
        """How far these copies are behind the owner's, seconds; infinite while nobody knows.

        Raises:
            KafkaEdgeError: the checkpoint topic can't be asked.
        """
        if not lanes:
            return math.inf
        if self._is_new is None and self._newest is None:
            self._is_new = self._checkpoints.is_new(self._slice_no)
            if self._is_new:
                self._lag.never_served(self._now_s)
        stored = {topic: lane.shard.stored for topic, lane in lanes.items()}
        return self._lag.lag_s(stored, self._now_s)

    @property
    def _now_s(self) -> float:
        return self._clock.monotonic_s()
