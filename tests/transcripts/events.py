"""Virtual time: what happens next, how long things take, and what is written down of it."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from itertools import count
from typing import Final

_FIXED_S: Final = {"watch": 0.010, "turn": 0.002, "connect": 0.300} | {
    "take over": 0.100,
    "transaction": 0.020,
}
_LONGEST: Final = {"watch": 0.060, "turn": 0.020, "connect": 1.5}


class Events:
    """A queue of what is to come.

    Args:
        chance: draws how long things take; None: always the same, for a log to read.
    """

    def __init__(self, chance: random.Random | None = None) -> None:
        self.now_s = 0.0
        self.lines: list[str] = []
        self.check: Callable[[], None] = lambda: None
        """Called after every event, and before every request to ZooKeeper."""
        self._chance = chance
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def at(self, time_s: float, what: Callable[[], None]) -> None:
        """Have something happen."""
        heapq.heappush(self._queue, (max(time_s, self.now_s), next(self._order), what))

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        """Have something happen later."""
        self.at(self.now_s + delay_s, what)

    def delay_s(self, of: str) -> float:
        """How long it takes."""
        if self._chance is None:
            return _FIXED_S[of]
        return self._chance.uniform(0.001, _LONGEST[of])

    def run(self, until_s: float) -> None:
        """Let time pass."""
        while self._queue and self._queue[0][0] <= until_s:
            self.now_s, _, what = heapq.heappop(self._queue)
            what()
            self.check()
        self.now_s = until_s

    def say(self, who: str, what: str) -> None:
        """Write a line."""
        self.lines.append(f"{self.now_s:8.3f}  {who:<9}  {what}")
