"""Agenda of a worker: which shards have something to settle now, and when the next one will."""

from __future__ import annotations

from delayservice.engine.due import DueTimes
from delayservice.engine.ports import Place
from delayservice.slices.any_lane import AnyLane


class Agenda:
    """Due times of all owned shards, and the shards to be visited in the next turn.

    Attributes:
        walking: shards to visit in the next turn: H (see ``docs/glossary.md``) has not passed all
            records that were read, or the shard has changed.
    """

    def __init__(self) -> None:
        self.walking: dict[Place, None] = {}
        self._dues: DueTimes[Place] = DueTimes()

    def walk(self, lane: AnyLane) -> None:
        """Schedule an owned shard for the next turn, because records were read or state changed."""
        self.walking[lane.place] = None
        self.look_when_due(lane)

    def look_when_due(self, lane: AnyLane) -> None:
        """Schedule a shard for the time at which its next record is due."""
        self._dues.put(lane.place, lane.next_due_ms())

    def wait(self, lane: AnyLane) -> None:
        """Schedule a shard for the next turn, because a due record can't be settled yet."""
        self._dues.put(lane.place, None)
        self.walking[lane.place] = None

    def look_again(self, lane: AnyLane) -> None:
        """Schedule a changed shard for the next turn, or forget it if it is not owned."""
        if lane.shard.owned:
            self.walk(lane)
        else:
            self.forget(lane.place)

    def forget(self, place: Place) -> None:
        """Remove a shard from the agenda."""
        self.walking.pop(place, None)
        self._dues.put(place, None)

    def next_due_ms(self) -> int | None:
        """Return when the next record is due, epoch milliseconds; None: no shard has one."""
        return self._dues.next_ms()

    def take(self, now_ms: int) -> list[Place]:
        """Return the shards to visit at ``now_ms`` (epoch milliseconds): those with due records,
        the earliest first, then ``walking``. Forget the due times of the former.
        """
        places = dict.fromkeys(self._dues.take_due(now_ms))
        return list(places | self.walking)
