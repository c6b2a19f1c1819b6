"""Counters that a worker keeps and sends to the supervisor.

A worker counts once per batch, never per record. Every 1 to 5 s it sends its ``WorkerMetrics`` and
the state of its slices, encoded by ``snapshot.encode_snapshot``, to the supervisor, whose
``hub.MetricsHub`` collects them for Prometheus.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from delayservice.engine.census import OTHERS
from delayservice.engine.outcome import PAST_DUE, RESUMED, SENT_HOME

# Inclusive upper bounds of the buckets of lateness, in ms; one more bucket has no bound.
LATENESS_BOUNDS_MS = (
    1,
    2,
    5,
    10,
    20,
    50,
    100,
    150,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    30_000,
    60_000,
    300_000,
    900_000,
    3_600_000,
)

# The same for durations of transactions and of iterations of the worker's loop.
TRANSACTION_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_500, 5_000, 10_000, 30_000)


# Largest number of pairs of delay topic and target topic with metrics of their own; those of all
# other pairs of a delay topic are added up under ``census.OTHERS``.
TARGETS_MAX: Final = 20


class Histogram(msgspec.Struct):
    """Histogram of values in ms: number of values per bucket (not cumulative), and their sum. The
    upper bounds of the buckets are a constant of this module, the last bucket has none.
    """

    counts: list[int]
    sum_ms: float = 0.0

    @classmethod
    def empty(cls, bounds: Sequence[int]) -> Histogram:
        return cls([0] * (len(bounds) + 1))

    def add(self, other: Histogram) -> None:
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.sum_ms += other.sum_ms

    def since(self, before: Histogram) -> Histogram:
        pairs = zip(self.counts, before.counts, strict=True)
        return Histogram([now - earlier for now, earlier in pairs], self.sum_ms - before.sum_ms)

    def quantile_ms(self, fraction: float, bounds: Sequence[int]) -> int | None:
        """Return the upper bound of the bucket that contains the quantile, in ms; None: the
        histogram is empty. If the quantile is above all bounds, the last bound is returned.
        """
        total = sum(self.counts)
        seen = 0
        for count, bound in zip(self.counts, bounds, strict=False):
            seen += count
            if total and seen >= fraction * total:
                return bound
        return bounds[-1] if total else None


def _lateness() -> Histogram:
    return Histogram.empty(LATENESS_BOUNDS_MS)


def _transaction_times() -> Histogram:
    return Histogram.empty(TRANSACTION_BOUNDS_MS)


def histogram_of(lateness_ms: Collection[int]) -> Histogram:
    """Return a histogram, with bounds ``LATENESS_BOUNDS_MS``, of lateness values in ms."""
    found, ordered, below = _lateness(), sorted(lateness_ms), 0
    for index, bound in enumerate(LATENESS_BOUNDS_MS):
        upto = bisect_right(ordered, bound, below)
        found.counts[index] = upto - below
        below = upto
    found.counts[-1] = len(ordered) - below
    found.sum_ms = float(sum(ordered))
    return found


class WorkerMetrics(msgspec.Struct, kw_only=True):
    """Metrics of a whole worker. Only the thread of its loop writes them."""

    cpu_s: float = 0.0
    memory_bytes: int = 0
    # Durations of the iterations of its loop, without the wait for records.
    turns: Histogram = msgspec.field(default_factory=_transaction_times)
    # Durations of committed transactions, from begin to commit.
    transactions: Histogram = msgspec.field(default_factory=_transaction_times)
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
        default_factory=lambda: {kind: _lateness() for kind in (PAST_DUE, RESUMED, SENT_HOME)}
    )

    def delivered(self, topic: str, target: str, lateness_ms: Collection[int]) -> None:
        """Count one batch of delivered records by their lateness, in ms; below 0 is early."""
        self.early += sum(late < 0 for late in lateness_ms)
        of_topic = self.targets.setdefault(topic, {})
        if target not in of_topic and sum(map(len, self.targets.values())) >= TARGETS_MAX:
            target = OTHERS
        of_topic.setdefault(target, _lateness()).add(histogram_of(lateness_ms))

    @property
    def lateness(self) -> Histogram:
        # Of all targets together.
        total = _lateness()
        for targets in self.targets.values():
            for lateness in targets.values():
                total.add(lateness)
        return total

    def add(self, other: WorkerMetrics) -> None:
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
            self.apart.setdefault(kind, _lateness()).add(lateness)
        for topic, targets in other.targets.items():
            of_topic = self.targets.setdefault(topic, {})
            for target, lateness in targets.items():
                of_topic.setdefault(target, _lateness()).add(lateness)


def observe_s(histogram: Histogram, seconds: float) -> None:
    """Add a duration in s to ``histogram``, whose bounds are ``TRANSACTION_BOUNDS_MS``."""
    milliseconds = seconds * 1_000
    histogram.counts[bisect_left(TRANSACTION_BOUNDS_MS, milliseconds)] += 1
    histogram.sum_ms += milliseconds


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
