"""Agenda of a worker: which shards have something to settle now, and when the other shards have."""

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
        state changed, and for the due time of its first record.
        """
        self.walking[lane.place] = None
        self.look_when_due(lane)

    def look_when_due(self, lane: AnyLane) -> None:
        """Schedule a shard for the time at which its next record is due, and for no other time."""
        self._dues.put(lane.place, lane.next_due_ms())

    def wait(self, lane: AnyLane) -> None:
        """Schedule a shard for the loop's next iteration: a due record can't be settled yet."""
        self._dues.put(lane.place, None)
        self.walking[lane.place] = None

    def look_again(self, lane: AnyLane) -> None:
        """Schedule a changed shard for the loop's next iteration, or remove it if not owned."""
        if lane.shard.owned:
            self.walk(lane)
        else:
            self.forget(lane.place)

    def forget(self, place: Place) -> None:
        """Remove a shard (topic and partition) from the agenda."""
        self.walking.pop(place, None)
        self._dues.put(place, None)

    def next_due_ms(self) -> int | None:
        """Return the earliest due time of all shards, epoch milliseconds; None: there is none."""
        return self._dues.next_ms()

    def take(self, now_ms: int) -> list[Place]:
        """Return the shards (topic and partition) to settle at ``now_ms``, epoch milliseconds:
        those with due records, earliest first, then ``walking``. Remove the due times of the
        former.
        """
        places = dict.fromkeys(self._dues.take_due(now_ms))
        return list(places | self.walking)
