"""The shards that a worker has to settle, and when the next record of each is due."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from delayservice.engine.ports import Place
from delayservice.slices.lane import Lane

# Ratio of heap entries to valid ones above which the heap is rebuilt.
_STALE_PARTS = 4

K = TypeVar("K")


class DueTimes(Generic[K]):
    """Due times by shard. A replaced one stays in the heap until it is first there, or a
    rebuild.
    """

    def __init__(self) -> None:
        self._due_ms: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._serial = 0

    def put(self, key: K, due_ms: int | None) -> None:
        """Set a due time, epoch milliseconds; None: remove it."""
        if due_ms is None:
            self._due_ms.pop(key, None)
        elif self._due_ms.get(key) != due_ms:
            self._due_ms[key] = due_ms
            self._serial += 1  # keys need no order
            heappush(self._heap, (due_ms, self._serial, key))
            if len(self._heap) > _STALE_PARTS * len(self._due_ms) + _STALE_PARTS:
                self._rebuild()

    def _rebuild(self) -> None:
        self._heap = [(due_ms, n, key) for n, (key, due_ms) in enumerate(self._due_ms.items())]
        self._serial = len(self._heap)
        heapify(self._heap)

    def next_ms(self) -> int | None:
        heap = self._heap
        while heap and self._due_ms.get(heap[0][2]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def take_due(self, now_ms: int) -> list[K]:
        """Remove and return the keys due by ``now_ms``, epoch ms, earliest first."""
        taken: list[K] = []
        while (due_ms := self.next_ms()) is not None and due_ms <= now_ms:
            key = heappop(self._heap)[2]
            del self._due_ms[key]
            taken.append(key)
        return taken


class Agenda:
    """Due times of the shards that a worker owns. ``walking`` are those to settle in the next
    iteration whether or not a record is due: H has not passed all records, a due one could not be
    settled, or the shard has changed.
    """

    def __init__(self) -> None:
        self.walking: dict[Place, None] = {}
        self._waiting: dict[Place, None] = {}
        self._dues: DueTimes[Place] = DueTimes()

    def walk(self, lane: Lane) -> None:
        """Schedule an owned shard for the next iteration, and for its next record's due time."""
        self.walking[lane.place] = None
        self.look_when_due(lane)

    def look_when_due(self, lane: Lane) -> None:
        """Set the due time of a shard to that of its next record."""
        self._dues.put(lane.place, lane.next_due_ms())

    def wait(self, lane: Lane) -> None:
        """Schedule a shard whose due record can't be settled yet for the next iteration only."""
        self._dues.put(lane.place, None)
        self.walking[lane.place] = self._waiting[lane.place] = None

    def look_again(self, lane: Lane) -> None:
        """Schedule a changed shard as ``walk`` does, or remove it if this node does not own it."""
        if lane.shard.owned:
            self.walk(lane)
        else:
            self.forget(lane.place)

    def forget(self, place: Place) -> None:
        self.walking.pop(place, None)
        self._waiting.pop(place, None)
        self._dues.put(place, None)

    def next_due_ms(self) -> int | None:
        return self._dues.next_ms()

    def take(self, now_ms: int) -> list[Place]:
        """Return the shards to settle at ``now_ms``, epoch ms: those that waited, for what they
        wait for may be enough for one of them; those with due records, earliest first, whose due
        times are removed; then others in ``walking``.
        """
        places = self._waiting | dict.fromkeys(self._dues.take_due(now_ms))
        self._waiting.clear()
        return list(places | self.walking)
