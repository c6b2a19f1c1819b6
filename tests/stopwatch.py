"""Elapsed time, and how much the machine was slowed by other work meanwhile."""

from __future__ import annotations

import threading
import time
from typing import Self

_SPIN_S = 0.002
_REST_S = 0.05


class Stopwatch:
    """Measures elapsed time beside a thread that measures the load of the machine.

    The thread repeats a piece of work of 2 ms of processor time and sums up how long each took. On
    a free machine both times are the same; with four busy processes to a core, each piece takes
    four times as long. Bounds of tests hold for a free machine, so they are compared with
    ``fair_s``. The processes that the test itself runs count as load, too: a test of throughput
    must not use this.
    """

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._wall_s = self._cpu_s = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._measure, name="stopwatch", daemon=True)

    def __enter__(self) -> Self:
        """Start."""
        self._started_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop measuring the load."""
        self._done.set()
        self._thread.join()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started_s

    @property
    def slowdown(self) -> float:
        """Elapsed time per processor time of the repeated work, at least 1."""
        return max(1.0, self._wall_s / self._cpu_s) if self._cpu_s else 1.0

    def fair_s(self, waits_s: float = 0.0) -> float:
        """Return the seconds that this would have taken on a free machine.

        Args:
            waits_s: the part that is waited for by a timer, which no load makes longer, seconds.
        """
        elapsed_s = self.elapsed_s
        return min(elapsed_s, waits_s + max(elapsed_s - waits_s, 0.0) / self.slowdown)

    def _measure(self) -> None:
        while not self._done.wait(_REST_S):
            wall_s, cpu_s = time.monotonic(), time.thread_time()
            while time.thread_time() - cpu_s < _SPIN_S:
                pass
            self._wall_s += time.monotonic() - wall_s
            self._cpu_s += time.thread_time() - cpu_s
