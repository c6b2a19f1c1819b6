"""Metrics that a worker keeps and sends to the supervisor.

A worker has one ``SliceMetrics`` for each of its slices and updates it once per batch, never per
record. Every 1 to 5 s it sends all of them, encoded by ``snapshot.encode_snapshot``, to the
supervisor, whose ``hub.MetricsHub`` collects them for Prometheus.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from delayservice.engine.census import OTHERS, TopicCounts
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


class WorkerMetrics(msgspec.Struct):
    """Metrics of a whole worker. Only the thread of its loop writes them."""

    cpu_s: float = 0.0
    memory_bytes: int = 0
    # Durations of the iterations of its loop, without the wait for records.
    turns: Histogram = msgspec.field(default_factory=_transaction_times)
    # Durations of committed transactions, from begin to commit.
    transactions: Histogram = msgspec.field(default_factory=_transaction_times)
    # Lateness of deliveries, by delay topic, then by target topic, for ``TARGETS_MAX`` pairs;
    # deliveries to other targets count under ``census.OTHERS``.
    targets: dict[str, dict[str, Histogram]] = msgspec.field(default_factory=dict)
    # Lateness of records that were due when written, put off, or sent to their home, by kind
    # (``outcome.PAST_DUE``, ``outcome.RESUMED``, ``outcome.SENT_HOME``).
    apart: dict[str, Histogram] = msgspec.field(
        default_factory=lambda: {
            PAST_DUE: _lateness(),
            RESUMED: _lateness(),
            SENT_HOME: _lateness(),
        }
    )

    def observe_target(self, topic: str, target: str, lateness: Histogram) -> None:
        of_topic = self.targets.setdefault(topic, {})
        if target not in of_topic and sum(map(len, self.targets.values())) >= TARGETS_MAX:
            target = OTHERS
        of_topic.setdefault(target, _lateness()).add(lateness)

    def add(self, other: WorkerMetrics) -> None:
        self.cpu_s += other.cpu_s
        self.turns.add(other.turns)
        self.transactions.add(other.transactions)
        for kind, lateness in other.apart.items():
            self.apart.setdefault(kind, _lateness()).add(lateness)
        for topic, targets in other.targets.items():
            mine = self.targets.setdefault(topic, {})
            for target, lateness in targets.items():
                mine.setdefault(target, _lateness()).add(lateness)


def observe_s(histogram: Histogram, seconds: float) -> None:
    """Add a duration in s to ``histogram``, whose bounds are ``TRANSACTION_BOUNDS_MS``."""
    milliseconds = seconds * 1_000
    histogram.counts[bisect_left(TRANSACTION_BOUNDS_MS, milliseconds)] += 1
    histogram.sum_ms += milliseconds


class Counters(msgspec.Struct):
    """Counters of one slice since its worker began to keep it. The supervisor adds up those of all
    its workers since the node started.
    """

    # Source records stored, control records and invalid ones included.
    ingested: int = 0
    # Committed outputs by outcome (``engine.outcome.OUTCOME_NAMES``).
    settled: dict[str, int] = msgspec.field(default_factory=dict)
    # Dead letters by their ``delay-error`` code.
    rejected: dict[str, int] = msgspec.field(default_factory=dict)
    # Deliveries before their due time; not 0: a bug or a wrong clock.
    early: int = 0
    # Transactions that were aborted, or whose result was unknown.
    aborts: int = 0
    # Settled records beyond ``delivery.slot_records_max`` in the second of their due time.
    over_cap: int = 0
    # Without records put off (parked or paced), or due before they were written.
    lateness: Histogram = msgspec.field(default_factory=_lateness)

    def add(self, other: Counters) -> None:
        self.ingested += other.ingested
        self.early += other.early
        self.aborts += other.aborts
        self.over_cap += other.over_cap
        for mine, its in ((self.settled, other.settled), (self.rejected, other.rejected)):
            for name, count in its.items():
                mine[name] = mine.get(name, 0) + count
        self.lateness.add(other.lateness)


class SliceMetrics(msgspec.Struct):
    """Metrics of one slice as its worker has them. Only the thread of its loop writes them."""

    slice: int
    counters: Counters = msgspec.field(default_factory=Counters)
    # Distinguishes the times that the worker has kept the slice: ``counters`` start at zero each
    # time.
    keeping: int = 0
    # ``owner``, ``replica``, or the value of ``cause`` if this node may not own the slice.
    state: str = "replica"
    # Why this node may not own the slice (``engine.electability.Cause``); empty: it may.
    cause: str = ""
    # Explanation of ``cause`` for people, one sentence.
    reason: str = ""
    # Problem that stops or endangers delivery, one sentence; empty: no problem.
    alarm: str = ""
    # Epoch of this node's ownership of the slice; 0: it is not the owner.
    epoch: int = 0
    # Time by which the copy is behind the owner's; negative: unknown.
    lag_s: float = -1.0
    # Whether the disk is too full to store more.
    storing_stopped: bool = False
    # Number of key ranges of the copy that could not be read when all of it was read last.
    damaged: int = 0
    # Number of source offsets that retention deleted before they were settled, according to the
    # newest checkpoint.
    lost_offsets: int = 0
    # Without records known to be cancelled, replaced or fired.
    pending: int = 0
    store_bytes: int = 0
    # Due time of the first pending record; None: no record is pending.
    oldest_due_ms: int | None = None
    # By delay topic; empty unless this node owns the slice, so that sums over the nodes count each
    # record once.
    topics: dict[str, TopicCounts] = msgspec.field(default_factory=dict)
    # Time since the worker's last commit began; 0: the slice's cursor needs no commit, or this node
    # is not the owner.
    cursor_age_s: float = 0.0
    # Number of source offsets in Kafka that are not stored yet.
    source_lag: int = 0

    def observe_lateness(self, lateness_ms: Collection[int]) -> Histogram:
        """Add the lateness of one batch of delivered records, in ms, to the counters, and return
        its histogram. Negative values count as early.
        """
        added = histogram_of(lateness_ms)
        if min(lateness_ms, default=0) < 0:
            self.counters.early += sum(late < 0 for late in lateness_ms)
        self.counters.lateness.add(added)
        return added


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
