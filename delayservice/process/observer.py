"""Metrics of the slices of a worker, fed by its loop."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from delayservice.engine.checkpoint import Checkpoint
from delayservice.engine.electability import CopyFacts, WorkerFacts, electability
from delayservice.engine.outcome import OUTCOME_NAMES, Tally
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
    """Metrics of one slice, with the state of its sampling and progress log."""

    metrics: SliceMetrics
    published: bytes
    """``metrics`` as last encoded, for other threads."""
    lag_s: float = float("inf")
    """Lag of the copy, seconds; infinite: unknown."""
    was_behind: bool = False
    """Whether the last line of the progress log said that the copy catches up."""
    told_s: float = float("-inf")
    """Time of the last line of the progress log, monotonic seconds."""
    is_quiet: bool = False
    """Whether the slice has no lag, and got no record or checkpoint since the sample before."""
    seen: tuple[Mapping[str, int], Checkpoint | None] | None = None
    """Stored positions and newest checkpoint at the last sample; None: not sampled yet."""
    counts: dict[str, LaneCounts] = field(default_factory=dict)
    """Counts of the waiting records, by delay topic."""
    count_again_s: float = float("-inf")
    """Time of the next count of waiting records, monotonic seconds."""


class MetricsObserver:
    """Observer of the loop that updates the metrics of slices, once per batch."""

    def __init__(self) -> None:
        self.sampled: dict[int, Sampled] = {}
        self.worker = WorkerMetrics()

    def of(self, slice_no: int) -> SliceMetrics:
        """Return the metrics of a slice."""
        found = self.sampled.get(slice_no)
        if found is None:
            unknown = electability(WorkerFacts(), CopyFacts())
            cause = unknown.cause.value
            metrics = SliceMetrics(slice_no, state=cause, cause=cause, reason=unknown.reason)
            found = self.sampled.setdefault(slice_no, Sampled(metrics, encode_slice(metrics)))
        return found.metrics

    def ingested(self, slice_no: int, records: int) -> None:
        """Count stored source records."""
        self.of(slice_no).counters.ingested += records

    def settled(self, slice_no: int, tally: Tally, now_ms: int) -> None:
        """Count committed outputs and their lateness. ``now_ms``: time of the commit, epoch ms."""
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
        """Record the duration of a committed transaction, in s. Count an aborted one for the lowest
        of its slices.
        """
        if committed:
            observe_s(self.worker.transactions, seconds)
        elif slices:
            self.of(min(slices)).counters.aborts += 1

    def turned(self, seconds: float) -> None:
        """Record the duration of a turn of the loop, in s."""
        observe_s(self.worker.turns, seconds)
