"""Samples of a node's throughput and lateness in the last 15 minutes, for charts."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from pydantic import BaseModel

from delayservice.metrics.counts import LATENESS_BOUNDS_MS, Counters
from delayservice.metrics.hub import NodeTotals

EVERY_S: Final = 1.0
# Samples in memory, one per second: 15 minutes.
KEPT: Final = 900


class Sample(BaseModel):
    """Counts of an interval of about a second, which ended at ``at_ms``, epoch ms."""

    at_ms: int
    seconds: float
    ingested: int
    delivered: int
    settled: int
    pending: int
    lateness_ms_p50: int | None
    lateness_ms_p99: int | None


class History:
    """Samples of the last 15 minutes, about one per second, taken by a thread."""

    def __init__(self, totals: Callable[[], NodeTotals]) -> None:
        self._totals = totals
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._last: tuple[float, Counters] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()

    def last(self, count: int) -> list[Sample]:
        return list(self._samples)[-count:]

    def _run(self) -> None:
        while not self._stopping.wait(EVERY_S):
            self.sample(time.monotonic(), time.time_ns() // 1_000_000)

    def sample(self, now_s: float, now_ms: int) -> None:
        """Store a sample of the counts since the previous call; the first call only reads the
        counters.
        """
        total, pending = self._totals()
        if self._last is not None:
            before_s, before = self._last
            counted = total.since(before)
            settled = counted.settled
            self._samples.append(
                Sample(
                    at_ms=now_ms,
                    seconds=round(now_s - before_s, 3),
                    ingested=counted.ingested,
                    delivered=settled.get("delivered", 0) + settled.get("fired", 0),
                    settled=sum(settled.values()),
                    pending=pending,
                    lateness_ms_p50=counted.lateness.quantile_ms(0.5, LATENESS_BOUNDS_MS),
                    lateness_ms_p99=counted.lateness.quantile_ms(0.99, LATENESS_BOUNDS_MS),
                )
            )
        self._last = now_s, total
