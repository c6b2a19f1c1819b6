"""Counters that a worker keeps and sends to the supervisor.

A worker counts once per batch, never per record. Every 1 to 5 s it sends its ``WorkerMetrics`` and
the state of its slices, encoded by ``snapshot.encode_snapshot``, to the supervisor, whose
``hub.MetricsHub`` collects them for Prometheus.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection
from typing import Final

import msgspec

from delayservice.engine.census import OTHERS
from delayservice.engine.outcome import PAST_DUE, RESUMED, SENT_HOME

# Inclusive upper bounds of the buckets of all histograms, in ms; one more bucket has no bound.
BOUNDS_MS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 150, 250, 500),
    *(1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000, 900_000, 3_600_000),
)


# Largest number of pairs of delay topic and target topic with metrics of their own; those of all
# other pairs of a delay topic are added up under ``census.OTHERS``.
TARGETS_MAX: Final = 20


class Histogram(msgspec.Struct):
    """Histogram of values in ms: number of values per bucket of ``BOUNDS_MS`` (not cumulative), and
    their sum.
    """

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BOUNDS_MS) + 1))
    sum_ms: float = 0.0

    def observe(self, values_ms: Collection[float]) -> None:
        ordered, below = sorted(values_ms), 0
        for index, bound in enumerate(BOUNDS_MS):
            upto = bisect_right(ordered, bound, below)
            self.counts[index] += upto - below
            below = upto
        self.counts[-1] += len(ordered) - below
        self.sum_ms += sum(ordered)

    def add(self, other: Histogram) -> None:
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.sum_ms += other.sum_ms

    def since(self, before: Histogram) -> Histogram:
        pairs = zip(self.counts, before.counts, strict=True)
        return Histogram([now - earlier for now, earlier in pairs], self.sum_ms - before.sum_ms)

    def quantile_ms(self, fraction: float) -> int | None:
        """Return the upper bound of the bucket that contains the quantile, in ms; None: the
        histogram is empty. If the quantile is above all bounds, the last bound is returned.
        """
        total = sum(self.counts)
        seen = 0
        for count, bound in zip(self.counts, BOUNDS_MS, strict=False):
            seen += count
            if total and seen >= fraction * total:
                return bound
        return BOUNDS_MS[-1] if total else None


class WorkerMetrics(msgspec.Struct, kw_only=True):
    """Metrics of a whole worker. Only the thread of its loop writes them."""

    cpu_s: float = 0.0
    memory_bytes: int = 0
    # Durations of the iterations of its loop, without the wait for records.
    turns: Histogram = msgspec.field(default_factory=Histogram)
    # Durations of committed transactions, from begin to commit.
    transactions: Histogram = msgspec.field(default_factory=Histogram)
    # Transactions that were aborted, or whose result was unknown.
    aborts: int = 0
    # Source records stored, control records and invalid ones included.
    ingested: int = 0
    # Deliveries before their due time; not 0: a bug or a wrong clock.
    early: int = 0
    # Settled records beyond ``delivery.slot_records_max`` in the second of their due time.
    over_cap: int = 0
    # Committed outputs by outcome (``engine.outcome.OUTCOME_NAMES``).
    settled: dict[str, int] = msgspec.field(default_factory=dict)
    # Dead letters by their ``delay-error`` code.
    rejected: dict[str, int] = msgspec.field(default_factory=dict)
    # Lateness of deliveries, by delay topic, then by target topic, for ``TARGETS_MAX`` pairs;
    # deliveries to other targets count under ``census.OTHERS``. Without records put off (parked or
    # paced), or due before they were written.
    targets: dict[str, dict[str, Histogram]] = msgspec.field(default_factory=dict)
    # Lateness of records that were due when written, put off, or sent to their home, by kind
    # (``outcome.PAST_DUE``, ``outcome.RESUMED``, ``outcome.SENT_HOME``).
    apart: dict[str, Histogram] = msgspec.field(
        default_factory=lambda: {kind: Histogram() for kind in (PAST_DUE, RESUMED, SENT_HOME)}
    )

    def delivered(self, topic: str, target: str, lateness_ms: Collection[int]) -> None:
        """Count one batch of delivered records by their lateness, in ms; below 0 is early."""
        self.early += sum(late < 0 for late in lateness_ms)
        self._lateness_to(topic, target, TARGETS_MAX).observe(lateness_ms)

    def _lateness_to(self, topic: str, target: str, pairs_max: float) -> Histogram:
        of_topic = self.targets.setdefault(topic, {})
        if target not in of_topic:
            pairs = sum(len(found) - (OTHERS in found) for found in self.targets.values())
            target = OTHERS if pairs >= pairs_max else target
        return of_topic.setdefault(target, Histogram())

    @property
    def lateness(self) -> Histogram:
        # Of all targets together.
        total = Histogram()
        for targets in self.targets.values():
            for lateness in targets.values():
                total.add(lateness)
        return total

    @property
    def histograms(self) -> list[Histogram]:
        by_target = [one for targets in self.targets.values() for one in targets.values()]
        return [self.turns, self.transactions, *self.apart.values(), *by_target]

    def add(self, other: WorkerMetrics, pairs_max: float = math.inf) -> None:
        """Add the counts of another worker, or of a later process of this one with ``pairs_max``
        pairs in ``targets``.
        """
        self.cpu_s += other.cpu_s
        self.aborts += other.aborts
        self.ingested += other.ingested
        self.early += other.early
        self.over_cap += other.over_cap
        for mine, its in ((self.settled, other.settled), (self.rejected, other.rejected)):
            for name, count in its.items():
                mine[name] = mine.get(name, 0) + count
        self.turns.add(other.turns)
        self.transactions.add(other.transactions)
        for kind, lateness in other.apart.items():
            self.apart.setdefault(kind, Histogram()).add(lateness)
        for topic, targets in other.targets.items():
            for target, lateness in targets.items():
                self._lateness_to(topic, target, pairs_max).add(lateness)


class AuditFacts(msgspec.Struct):
    """Result of the newest audit; ``findings`` by kind."""

    at_ms: int
    records: int
    findings: dict[str, int]


class ReconcileFacts(msgspec.Struct):
    """Result of the newest comparison of the nodes' copies."""

    at_ms: int
    findings: dict[str, int]
    records: int
    pending: int
    # Number of copies repaired by the process that compares.
    repairs: int = 0
    # Whether the limit of repairs is reached, so that no more are made.
    is_stopped: bool = False
