"""Metrics of the slices of a worker, updated by its loop."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from delayservice.engine.checkpoint import Checkpoint
from delayservice.engine.electability import CopyFacts, WorkerFacts, electability
from delayservice.engine.outcome import OUTCOME_NAMES, OutputCounters
from delayservice.inspection.counting import LaneCounts
from delayservice.metrics.counts import (
    WorkerMetrics,
)
from delayservice.metrics.snapshot import encode_slice
from delayservice.metrics.status import SliceState


@dataclass(slots=True)
class Sampled:
    """State of one slice, with what is needed to update it and to log the slice's progress."""

    state: SliceState
    # ``state`` as last encoded by ``encode_slice``; other threads send it to the supervisor.
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
    # Records beyond the cap that the worker's metrics count already.
    over_cap: int = 0
    # Time from which pending records are counted again, monotonic seconds.
    count_again_s: float = float("-inf")


class MetricsObserver:
    """Receiver of the numbers that the loop reports, once per batch, for metrics."""

    def __init__(self) -> None:
        # Metrics of each slice, by its number.
        self.sampled: dict[int, Sampled] = {}
        # Metrics of the whole worker.
        self.worker = WorkerMetrics()

    def of(self, slice_no: int) -> SliceState:
        # A new one is not electable.
        found = self.sampled.get(slice_no)
        if found is None:
            unknown = electability(WorkerFacts(), CopyFacts())
            cause = unknown.cause.value
            state = SliceState(slice_no, state=cause, cause=cause, reason=unknown.reason)
            found = self.sampled.setdefault(slice_no, Sampled(state, encode_slice(state)))
        return found.state

    def ingested(self, records: int) -> None:
        self.worker.ingested += records

    def settled(self, tally: OutputCounters, now_ms: int) -> None:
        settled, rejected = self.worker.settled, self.worker.rejected
        for outcome, count in zip(OUTCOME_NAMES, tally.counts, strict=True):
            if count:
                settled[outcome] = settled.get(outcome, 0) + count
        for (topic, target), dues_ms in tally.delivered.items():
            self.worker.delivered(topic, target, [now_ms - due_ms for due_ms in dues_ms])
        for kind, since_ms in tally.apart.items():  # a broker's clock may be ahead of this one
            late_ms = [max(now_ms - since, 0) for since in since_ms]
            self.worker.apart[kind].observe(late_ms)
        for code in tally.codes:
            rejected[code] = rejected.get(code, 0) + 1

    def transaction(self, slices: Collection[int], seconds: float, *, committed: bool) -> None:
        if committed:
            self.worker.transactions.observe([1_000 * seconds])
        elif slices:  # aborted, or with an unknown result
            self.worker.aborts += 1

    def turned(self, seconds: float) -> None:
        self.worker.turns.observe([1_000 * seconds])
