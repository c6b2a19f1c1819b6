"""Next due times of all shards of a worker, in one heap. Pure."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

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
