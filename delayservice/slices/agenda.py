from __future__ import annotations

from delayservice.engine.due_times import DueTimes
from delayservice.engine.ports import Place
from delayservice.slices.any_lane import AnyLane


class Agenda:
    """Due times of the shards that a worker owns. ``walking`` are those to settle in the next
    iteration whether or not a record is due: H has not passed all records, or the shard has
    changed.
    """

    def __init__(self) -> None:
        self.walking: dict[Place, None] = {}
        self._dues: DueTimes[Place] = DueTimes()

    def walk(self, lane: AnyLane) -> None:
        """Schedule an owned shard for the next iteration, and for its next record's due time."""
        self.walking[lane.place] = None
        self.look_when_due(lane)

    def look_when_due(self, lane: AnyLane) -> None:
        """Set the due time of a shard to that of its next record."""
        self._dues.put(lane.place, lane.next_due_ms())

    def wait(self, lane: AnyLane) -> None:
        """Schedule a shard whose due record can't be settled yet for the next iteration only."""
        self._dues.put(lane.place, None)
        self.walking[lane.place] = None

    def look_again(self, lane: AnyLane) -> None:
        """Schedule a changed shard as ``walk`` does, or remove it if this node does not own it."""
        if lane.shard.owned:
            self.walk(lane)
        else:
            self.forget(lane.place)

    def forget(self, place: Place) -> None:
        self.walking.pop(place, None)
        self._dues.put(place, None)

    def next_due_ms(self) -> int | None:
        return self._dues.next_ms()

    def take(self, now_ms: int) -> list[Place]:
        """Return the shards to settle at ``now_ms``, epoch ms: those with due records, earliest
        first, then others in ``walking``. The due times of the former are removed.
        """
        places = dict.fromkeys(self._dues.take_due(now_ms))
        return list(places | self.walking)
