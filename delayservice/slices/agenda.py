"""Which shards of a worker have something to settle, and when the next one will."""

from __future__ import annotations

from delayservice.engine.due import DueTimes
from delayservice.engine.ports import Place
from delayservice.slices.any_lane import AnyLane


class Agenda:
    """Due times of all owned shards, and those that H has to walk.

    Attributes:
        walking: shards whose H has not passed all that was read, or that have to be looked at with
            the next turn for another reason.
    """

    def __init__(self) -> None:
        self.walking: dict[Place, None] = {}
        self._dues: DueTimes[Place] = DueTimes()

    def walk(self, lane: AnyLane) -> None:
        """Look at an owned shard with the next turn: something was read, or has changed."""
        self.walking[lane.place] = None
        self.look_when_due(lane)

    def look_when_due(self, lane: AnyLane) -> None:
        """Look at a shard when its next record is due."""
        self._dues.put(lane.place, lane.next_due_ms())

    def wait(self, lane: AnyLane) -> None:
        """Look at a shard again in a moment: something is due that can't be settled yet."""
        self._dues.put(lane.place, None)
        self.walking[lane.place] = None

    def look_again(self, lane: AnyLane) -> None:
        """Look at a shard that has changed, or forget it if it is not owned."""
        if lane.shard.owned:
            self.walk(lane)
        else:
            self.forget(lane.place)

    def forget(self, place: Place) -> None:
        """Look at a shard no longer."""
        self.walking.pop(place, None)
        self._dues.put(place, None)

    def next_due_ms(self) -> int | None:
        """Return when the next record is due, epoch milliseconds; None: none waits."""
        return self._dues.next_ms()

    def take(self, now_ms: int) -> list[Place]:
        """Return the shards to look at now, the earliest due first, and forget their times."""
        places = dict.fromkeys(self._dues.take_due(now_ms))
        return list(places | self.walking)
