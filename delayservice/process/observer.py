"""Metrics of the slices of a worker, updated by its loop."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from delayservice.engine.checkpoint import Checkpoint
from delayservice.engine.electability import CopyFacts, WorkerFacts, electability
from delayservice.engine.outcome import OUTCOME_NAMES, OutputCounters
from delayservice.inspection.counting import LaneCounts
from delayservice.metrics.counts import (
    SliceMetrics,
    WorkerMetrics,
    histogram_of,
    observe_s,
)
from delayservice.metrics.snapshot import encode_slice


@dataclass(slots=True)
class Sampled:
    """Metrics of one slice, with what is needed to update them and to log the slice's progress."""

    metrics: SliceMetrics
    # ``metrics`` as last encoded by ``encode_slice``; other threads send it to the supervisor.
    published: bytes
    # Time by which the copy is behind the owner's, seconds; infinite: unknown.
    lag_s: float = float("inf")
    # Whether the last log line about the slice's progress said that the copy catches up.
    was_behind: bool = False
    # Time of the last log line about the slice's progress, monotonic seconds.
    told_s: float = float("-inf")
    # Whether the slice has no lag, and got no record or checkpoint since the last update.
    is_quiet: bool = False
    # At the last update: S by delay topic, and the newest checkpoint; None: no update yet.
    seen: tuple[Mapping[str, int], Checkpoint | None] | None = None
    # Numbers of pending records, by delay topic.
    counts: dict[str, LaneCounts] = field(default_factory=dict)
    # Time from which pending records are counted again, monotonic seconds.
    count_again_s: float = float("-inf")


class MetricsObserver:
    """Receiver of the numbers that the loop reports, once per batch, for metrics."""

    def __init__(self) -> None:
        # Metrics of each slice, by its number.
        self.sampled: dict[int, Sampled] = {}
        # Metrics of the whole worker.
        self.worker = WorkerMetrics()
        self._keeping = itertools.count(1)

    def of(self, slice_no: int) -> SliceMetrics:
        # A new one begins with zeros, and not electable.
        found = self.sampled.get(slice_no)
        if found is None:
            unknown = electability(WorkerFacts(), CopyFacts())
            cause = unknown.cause.value
            metrics = SliceMetrics(
                slice_no,
                keeping=next(self._keeping),
                state=cause,
                cause=cause,
                reason=unknown.reason,
            )
            found = self.sampled.setdefault(slice_no, Sampled(metrics, encode_slice(metrics)))
        return found.metrics

    def ingested(self, slice_no: int, records: int) -> None:
        self.of(slice_no).counters.ingested += records

    def settled(self, slice_no: int, tally: OutputCounters, now_ms: int) -> None:
        metrics = self.of(slice_no)
        settled, rejected = metrics.counters.settled, metrics.counters.rejected
        for outcome, count in zip(OUTCOME_NAMES, tally.counts, strict=True):
            if count:
                settled[outcome] = settled.get(outcome, 0) + count
        for (topic, target), dues_ms in tally.delivered.items():
            added = metrics.observe_lateness([now_ms - due_ms for due_ms in dues_ms])
            self.worker.observe_target(topic, target, added)
        for kind, since_ms in tally.apart.items():  # a broker's clock may be ahead of this one
            late_ms = [max(now_ms - since, 0) for since in since_ms]
            self.worker.apart[kind].add(histogram_of(late_ms))
        for code in tally.codes:
            rejected[code] = rejected.get(code, 0) + 1

    def transaction(self, slices: Collection[int], seconds: float, *, committed: bool) -> None:
        # An aborted one, or one with an unknown result, is counted once: in the slice with the
        # lowest number.
        if committed:
            observe_s(self.worker.transactions, seconds)
        elif slices:
            self.of(min(slices)).counters.aborts += 1

    def turned(self, seconds: float) -> None:
        observe_s(self.worker.turns, seconds)
