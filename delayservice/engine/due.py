"""Order in which shards are looked at next: one heap for all shards of a worker. Pure."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

_STALE_PARTS = 4
"""The heap is rebuilt when it holds this many times the entries that count."""

K = TypeVar("K")


class DueTimes(Generic[K]):
    """Due times by key. An entry that was changed stays in the heap until it comes up."""

    def __init__(self) -> None:
        self._due_ms: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._serial = 0

    def put(self, key: K, due_ms: int | None) -> None:
        """Set when ``key`` is due, epoch milliseconds; None: never."""
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
        """Return the earliest due time; None when nothing is pending."""
        heap = self._heap
        while heap and self._due_ms.get(heap[0][2]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def take_due(self, now_ms: int) -> list[K]:
        """Return the keys that are due by ``now_ms``, earliest first, and forget their times."""
        taken: list[K] = []
        while (due_ms := self.next_ms()) is not None and due_ms <= now_ms:
            key = heappop(self._heap)[2]
            del self._due_ms[key]
            taken.append(key)
        return taken
