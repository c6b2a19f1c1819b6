"""Agenda of a worker: the shards to settle in the loop's next iteration, and for each shard the
time at which its next record is due.
"""

from __future__ import annotations

from delayservice.engine.due_times import DueTimes
from delayservice.engine.ports import Place
from delayservice.slices.any_lane import AnyLane


class Agenda:
    """Due times of the shards that a worker owns, and the shards to settle in the loop's next
    iteration.

    Attributes:
        walking: shards to settle in the next iteration whether or not a record is due: H has not
            passed all records that were read, or the shard has changed.
    """

    def __init__(self) -> None:
        self.walking: dict[Place, None] = {}
        self._dues: DueTimes[Place] = DueTimes()

    def walk(self, lane: AnyLane) -> None:
        """Schedule an owned shard for the loop's next iteration, because records were read or its
        state changed, and for the time at which its next stored record is due.
        """
        self.walking[lane.place] = None
        self.look_when_due(lane)

    def look_when_due(self, lane: AnyLane) -> None:
        """Set the due time of a shard to that of its next record, or remove it if there is no such
        record. ``walking`` does not change.
        """
        self._dues.put(lane.place, lane.next_due_ms())

    def wait(self, lane: AnyLane) -> None:
        """Schedule a shard whose due record can't be settled yet for the loop's next iteration, and
        remove its due time.
        """
        self._dues.put(lane.place, None)
        self.walking[lane.place] = None

    def look_again(self, lane: AnyLane) -> None:
        """Schedule a changed shard as ``walk`` does, or remove it if this node does not own it."""
        if lane.shard.owned:
            self.walk(lane)
        else:
            self.forget(lane.place)

    def forget(self, place: Place) -> None:
        """Remove a shard (topic and partition) from the agenda."""
        self.walking.pop(place, None)
        self._dues.put(place, None)

    def next_due_ms(self) -> int | None:
        """Return the earliest due time of all shards, epoch ms; None: no shard has one."""
        return self._dues.next_ms()

    def take(self, now_ms: int) -> list[Place]:
        """Return the shards (topic and partition) to settle at ``now_ms``, epoch milliseconds:
        those with due records, earliest first, then the others in ``walking``. The due times of the
        former are removed; ``walking`` does not change.
        """
        places = dict.fromkeys(self._dues.take_due(now_ms))
        return list(places | self.walking)
