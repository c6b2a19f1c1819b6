"""The last minutes of a node, sampled, so that a page has something to show at once."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from delayservice.metrics import LATENESS_BOUNDS_MS, Histogram
from delayservice.metrics_export import NodeFacts

EVERY_S: Final = 1.0
KEPT: Final = 900


class Sample(msgspec.Struct, frozen=True):
    """What happened in one interval.

    Attributes:
        at_ms: its end, epoch milliseconds.
        seconds: how long it was.
        ingested: source records stored.
        delivered: records delivered or fired.
        settled: records that had any outcome.
        pending: records that wait at its end.
        lateness_ms_p50: median of its deliveries; None: there was none.
        lateness_ms_p99: 99th percentile.
    """

    at_ms: int
    seconds: float
    ingested: int
    delivered: int
    settled: int
    pending: int
    lateness_ms_p50: int | None
    lateness_ms_p99: int | None


class _Totals(msgspec.Struct):
    ingested: int
    delivered: int
    settled: int
    lateness: Histogram


class History:
    """Keeps a quarter of an hour.

    Args:
        facts: of the node, as of now.
    """

    def __init__(self, facts: Callable[[], NodeFacts]) -> None:
        self._facts = facts
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._last: tuple[float, _Totals] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._stopping.set()

    def last(self, count: int) -> list[Sample]:
        """The newest samples, oldest first."""
        return list(self._samples)[-count:]

    def _run(self) -> None:
        while not self._stopping.wait(EVERY_S):
            self.sample(time.monotonic(), time.time_ns() // 1_000_000)

    def sample(self, now_s: float, now_ms: int) -> None:
        """Take one."""
        facts = self._facts()
        totals = _totals(facts)
        if self._last is not None:
            before_s, before = self._last
            late = _since(totals.lateness, before.lateness)
            self._samples.append(
                Sample(
                    at_ms=now_ms,
                    seconds=round(now_s - before_s, 3),
                    ingested=totals.ingested - before.ingested,
                    delivered=totals.delivered - before.delivered,
                    settled=totals.settled - before.settled,
                    pending=sum(slice_.metrics.pending for slice_ in facts.slices),
                    lateness_ms_p50=late.quantile_ms(0.5, LATENESS_BOUNDS_MS),
                    lateness_ms_p99=late.quantile_ms(0.99, LATENESS_BOUNDS_MS),
                )
            )
        self._last = now_s, totals


def _totals(facts: NodeFacts) -> _Totals:
    totals = _Totals(0, 0, 0, Histogram.empty(LATENESS_BOUNDS_MS))
    for counters in facts.totals.values():
        totals.ingested += counters.ingested
        totals.delivered += counters.settled.get("delivered", 0) + counters.settled.get("fired", 0)
        totals.settled += sum(counters.settled.values())
        totals.lateness.add(counters.lateness)
    return totals


def _since(now: Histogram, before: Histogram) -> Histogram:
    return Histogram(
        [after - earlier for after, earlier in zip(now.counts, before.counts, strict=True)],
        now.sum_ms - before.sum_ms,
    )
