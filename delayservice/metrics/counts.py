"""The counts of a worker, which it sends to the supervisor.

A worker owns one ``SliceMetrics`` for each of its slices and updates it once per batch, never per
record. Once a second it sends ``snapshot.encode_snapshot`` of all of them to the supervisor, whose
``hub.MetricsHub`` shows them to Prometheus.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from delayservice.engine.census import OTHERS, TopicCounts
from delayservice.engine.outcome import PAST_DUE, RESUMED, SENT_HOME
from delayservice.metrics.status import Pause

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
"""Inclusive upper bounds of the lateness buckets, in ms; the last bucket has no bound."""

TRANSACTION_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_500, 5_000, 10_000, 30_000)
"""Upper bounds of the buckets for durations of transactions and turns, in ms."""


TARGETS_MAX: Final = 20
"""Largest number of pairs of delay topic and target with metrics of their own; metrics of all
other pairs are added up."""


class Histogram(msgspec.Struct):
    """Counts per bucket (not cumulative), and the sum of the observed values in ms."""

    counts: list[int]
    sum_ms: float = 0.0

    @classmethod
    def empty(cls, bounds: Sequence[int]) -> Histogram:
        """Return a histogram without observations: a bucket for each bound and one above."""
        return cls([0] * (len(bounds) + 1))

    def add(self, other: Histogram) -> None:
        """Add the counts of ``other``, which has the same bounds."""
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.sum_ms += other.sum_ms

    def since(self, before: Histogram) -> Histogram:
        """Return the observations after ``before``, an earlier state of this histogram."""
        pairs = zip(self.counts, before.counts, strict=True)
        return Histogram([now - earlier for now, earlier in pairs], self.sum_ms - before.sum_ms)

    def quantile_ms(self, fraction: float, bounds: Sequence[int]) -> int | None:
        """Return an upper estimate of the quantile, in ms: the upper bound of its bucket.

        None: there are no observations; the highest bound: the quantile is above all bounds.
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
    """Return the histogram of lateness values in ms, in any order; fast if they are sorted already,
    as in a batch in key order.
    """
    found, ordered, below = _lateness(), sorted(lateness_ms), 0
    for index, bound in enumerate(LATENESS_BOUNDS_MS):
        upto = bisect_right(ordered, bound, below)
        found.counts[index] = upto - below
        below = upto
    found.counts[-1] = len(ordered) - below
    found.sum_ms = float(sum(ordered))
    return found


class WorkerMetrics(msgspec.Struct):
    """Metrics of a whole worker. Single-threaded: its loop writes them.

    Attributes:
        cpu_s: CPU time of the process, seconds.
        memory_bytes: resident memory of the process.
        turns: durations of the loop's turns, without the wait for records.
        transactions: durations of committed transactions, begin to commit.
        targets: lateness by delay topic and target, for ``TARGETS_MAX`` pairs; other targets count
            as ``census.OTHERS``.
        apart: lateness of special cases, by kind (``outcome.PAST_DUE``, ``outcome.RESUMED``,
            ``outcome.SENT_HOME``).
    """

    cpu_s: float = 0.0
    memory_bytes: int = 0
    turns: Histogram = msgspec.field(default_factory=_transaction_times)
    transactions: Histogram = msgspec.field(default_factory=_transaction_times)
    targets: dict[str, dict[str, Histogram]] = msgspec.field(default_factory=dict)
    apart: dict[str, Histogram] = msgspec.field(
        default_factory=lambda: {
            PAST_DUE: _lateness(),
            RESUMED: _lateness(),
            SENT_HOME: _lateness(),
        }
    )

    def observe_target(self, topic: str, target: str, lateness: Histogram) -> None:
        """Add lateness of deliveries to a target; after ``TARGETS_MAX`` pairs, to ``OTHERS``."""
        of_topic = self.targets.setdefault(topic, {})
        if target not in of_topic and sum(map(len, self.targets.values())) >= TARGETS_MAX:
            target = OTHERS
        of_topic.setdefault(target, _lateness()).add(lateness)

    def add(self, other: WorkerMetrics) -> None:
        """Add the counts of another worker, or of an earlier process of this one."""
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
    """Add a duration in s to a histogram with the buckets of ``TRANSACTION_BOUNDS_MS``."""
    milliseconds = seconds * 1_000
    histogram.counts[bisect_left(TRANSACTION_BOUNDS_MS, milliseconds)] += 1
    histogram.sum_ms += milliseconds


class Counters(msgspec.Struct):
    """Counters of one slice since its worker started."""

    ingested: int = 0
    """Source records stored, including control records and invalid ones."""
    settled: dict[str, int] = msgspec.field(default_factory=dict)
    """Committed outcomes by name (``engine.outcome.OUTCOME_NAMES``)."""
    rejected: dict[str, int] = msgspec.field(default_factory=dict)
    """Dead letters by ``delay-error`` code."""
    early: int = 0
    """Deliveries before their due time; not 0: a bug or a wrong clock."""
    aborts: int = 0
    """Transactions that were aborted, or whose outcome was unknown."""
    over_cap: int = 0
    """Records beyond the cap of their second (``delivery.slot_records_max``)."""
    lateness: Histogram = msgspec.field(default_factory=_lateness)
    """Lateness of deliveries, without records that were past due when written, and without parked
    and paced ones."""

    def add(self, other: Counters) -> None:
        """Add the counts of ``other``."""
        self.ingested += other.ingested
        self.early += other.early
        self.aborts += other.aborts
        self.over_cap += other.over_cap
        for mine, its in ((self.settled, other.settled), (self.rejected, other.rejected)):
            for name, count in its.items():
                mine[name] = mine.get(name, 0) + count
        self.lateness.add(other.lateness)

    def since(self, before: Counters) -> Counters:
        """Return the counts after ``before``, an earlier state of these counters."""
        return Counters(
            self.ingested - before.ingested,
            {name: n - before.settled.get(name, 0) for name, n in self.settled.items()},
            {name: n - before.rejected.get(name, 0) for name, n in self.rejected.items()},
            self.early - before.early,
            self.aborts - before.aborts,
            self.over_cap - before.over_cap,
            self.lateness.since(before.lateness),
        )


class SliceMetrics(msgspec.Struct):
    """One slice as its worker sees it. Single-threaded: the slice's loop writes it."""

    slice: int
    counters: Counters = msgspec.field(default_factory=Counters)
    state: str = "replica"
    """``owner``, ``replica``, or the value of ``cause`` if the node may not own it."""
    cause: str = ""
    """Why this node may not own it (``engine.electability.Cause``); empty: it may."""
    reason: str = ""
    """Explanation of ``cause`` for people, one sentence."""
    alarm: str = ""
    """Problem that stops or endangers delivery, one sentence; empty: no problem."""
    epoch: int = 0
    """Epoch of this node's ownership; 0: not the owner."""
    lag_s: float = -1.0
    """Lag of the copy behind the owner's, in s; negative: unknown."""
    storing_stopped: bool = False
    """Whether the disk is too full to store more."""
    damaged: int = 0
    """Number of ranges of the copy that the last scan of the disk could not read."""
    lost_offsets: int = 0
    """Unsettled offsets that retention deleted, according to the newest checkpoint."""
    pending: int = 0
    """Records that wait, without those known to be cancelled, replaced or fired."""
    store_bytes: int = 0
    """Size of its stores on the disk."""
    oldest_due_ms: int | None = None
    """Due time of the first pending record, epoch milliseconds; None: no record is pending."""
    topics: dict[str, TopicCounts] = msgspec.field(default_factory=dict)
    """Counts of waiting records by delay topic; empty while another node owns the slice, so that
    sums over the nodes count each record once."""
    cursor_age_s: float = 0.0
    """Time since the last commit of the cursor, or since it last needed no commit, in s."""
    source_lag: int = 0
    """Source records in Kafka that are not stored yet."""

    def observe_lateness(self, lateness_ms: Collection[int]) -> Histogram:
        """Add the lateness of a committed batch's records, in ms, in any order; return the added
        histogram.
        """
        added = histogram_of(lateness_ms)
        if min(lateness_ms, default=0) < 0:
            self.counters.early += sum(late < 0 for late in lateness_ms)
        self.counters.lateness.add(added)
        return added


class AuditFacts(msgspec.Struct):
    """Result of the newest audit.

    Attributes:
        at_ms: time of the audit, epoch milliseconds.
        records: number of source records that it audited.
        findings: number of findings by kind.
    """

    at_ms: int
    records: int
    findings: dict[str, int]


class ReconcileFacts(msgspec.Struct):
    """Result of the newest comparison of copies.

    Attributes:
        at_ms: time of the comparison, epoch milliseconds.
        findings: number of findings by kind.
        records: pending records that were compared.
        pending: all pending records.
        repairs: number of repairs made by the comparing process.
        is_stopped: whether the limit of repairs is reached, so that no more are made.
    """

    at_ms: int
    findings: dict[str, int]
    records: int
    pending: int
    repairs: int = 0
    is_stopped: bool = False


class PauseFacts(msgspec.Struct):
    """All active pauses."""

    told: list[Pause]
    """Pauses shown one by one, longest first."""
    counts: dict[str, int]
    """Number of all pauses by kind."""
    others_at_ms: int | None
    """Start of the longest pause not in ``told``, epoch milliseconds; None: all are in ``told``."""
