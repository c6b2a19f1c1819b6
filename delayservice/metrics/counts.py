"""The counts of a worker, and how they travel to the supervisor.

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
"""Upper bounds of the lateness buckets, milliseconds, inclusive; one more bucket is above all."""

TRANSACTION_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_500, 5_000, 10_000, 30_000)
"""Upper bounds of the buckets for times of transactions and turns, milliseconds."""


TARGETS_MAX: Final = 20
"""Pairs of delay topic and target that have figures of their own."""


class Histogram(msgspec.Struct):
    """Counts per bucket (not cumulative) and the sum of what was observed."""

    counts: list[int]
    sum_ms: float = 0.0

    @classmethod
    def empty(cls, bounds: Sequence[int]) -> Histogram:
        """Make one without observations: a bucket for each bound and one above all."""
        return cls([0] * (len(bounds) + 1))

    def add(self, other: Histogram) -> None:
        """Add all of ``other``, which has the same bounds."""
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.sum_ms += other.sum_ms

    def since(self, before: Histogram) -> Histogram:
        """Return what was observed after ``before``, which has the same bounds."""
        pairs = zip(self.counts, before.counts, strict=True)
        return Histogram([now - earlier for now, earlier in pairs], self.sum_ms - before.sum_ms)

    def quantile_ms(self, fraction: float, bounds: Sequence[int]) -> int | None:
        """Give the bound that this fraction of the observations is at or below: an upper estimate.

        None without observations, and the highest bound for what is above all.
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
    """Sort lateness into its buckets, milliseconds, in any order. Fast when ascending or descending
    already, as a batch in key order is.
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
    """Figures of a worker that belong to no slice. Single-threaded: its loop writes them.

    Attributes:
        cpu_s: CPU time of the process, seconds.
        memory_bytes: resident memory of the process.
        turns: time of the loop's turns without the wait for records.
        transactions: time of committed transactions, begin to commit.
        targets: lateness by delay topic and target; bounded, the rest counts for
            ``census.OTHERS``.
        apart: lateness that is counted apart, by kind (``outcome.PAST_DUE``, ``outcome.RESUMED``,
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
        """Count deliveries to a target; the first ``TARGETS_MAX`` have counts of their own."""
        of_topic = self.targets.setdefault(topic, {})
        if target not in of_topic and sum(map(len, self.targets.values())) >= TARGETS_MAX:
            target = OTHERS
        of_topic.setdefault(target, _lateness()).add(lateness)

    def add(self, other: WorkerMetrics) -> None:
        """Count in what another life of the worker, or another worker, has counted."""
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
    """Count one time in a histogram with the buckets of ``TRANSACTION_BOUNDS_MS``."""
    milliseconds = seconds * 1_000
    histogram.counts[bisect_left(TRANSACTION_BOUNDS_MS, milliseconds)] += 1
    histogram.sum_ms += milliseconds


class Counters(msgspec.Struct):
    """Counters since the worker started."""

    ingested: int = 0
    """Source records read into the store, control and invalid ones included."""
    settled: dict[str, int] = msgspec.field(default_factory=dict)
    """Committed outcomes by name (``core.outcome.OUTCOME_NAMES``)."""
    rejected: dict[str, int] = msgspec.field(default_factory=dict)
    """Dead letters by ``delay-error`` code."""
    early: int = 0
    """Deliveries before their due time: anything but 0 is a bug or a broken clock."""
    aborts: int = 0
    """Transactions that were aborted, or whose outcome was unknown."""
    over_cap: int = 0
    """Records beyond the cap of their second (``delivery.slot_records_max``)."""
    lateness: Histogram = msgspec.field(default_factory=_lateness)
    """Lateness of deliveries that were neither past due when written nor put off."""

    def add(self, other: Counters) -> None:
        """Add all of ``other``."""
        self.ingested += other.ingested
        self.early += other.early
        self.aborts += other.aborts
        self.over_cap += other.over_cap
        for mine, its in ((self.settled, other.settled), (self.rejected, other.rejected)):
            for name, count in its.items():
                mine[name] = mine.get(name, 0) + count
        self.lateness.add(other.lateness)

    def since(self, before: Counters) -> Counters:
        """Return what was counted after ``before``."""
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
    """``owner``, ``replica``, or of what is neither owned nor could be, ``cause``."""
    cause: str = ""
    """Why this node may not own it (``core.electability.Cause``); empty: it may."""
    reason: str = ""
    """The same for people, one sentence."""
    alarm: str = ""
    """The problem that stops or endangers delivery, in one sentence; empty while all is well."""
    epoch: int = 0
    """Of this node's ownership; 0 while another node owns the slice."""
    lag_s: float = -1.0
    """How far the copy is behind the owner's, seconds; negative while it is not known."""
    storing_stopped: bool = False
    """Whether the disk is too full to store more."""
    damaged: int = 0
    """Stretches of the copies that the last scan of the disk could not read."""
    lost_offsets: int = 0
    """Offsets that retention deleted before they were settled, as the newest checkpoint says."""
    pending: int = 0
    """Records that wait; cancelled, replaced and fired ones do not count, as far as the copy was
    read."""
    store_bytes: int = 0
    oldest_due_ms: int | None = None
    """Due time of the first pending record, epoch milliseconds; None when there is none."""
    topics: dict[str, TopicCounts] = msgspec.field(default_factory=dict)
    """What waits, by delay topic; empty while another node owns the slice, so that sums over the
    nodes count each record once."""
    cursor_age_s: float = 0.0
    """Seconds since the cursor was last committed, or was last seen with nothing to commit."""
    source_lag: int = 0
    """Source records that are in Kafka and not ingested yet."""

    def add_ingested(self, count: int) -> None:
        """Count records that were read into the store."""
        self.counters.ingested += count

    def add_settled(self, outcome: str, count: int) -> None:
        """Count settled records after their commit; ``outcome`` as ``OUTCOME_NAMES`` spells it."""
        settled = self.counters.settled
        settled[outcome] = settled.get(outcome, 0) + count

    def add_rejected(self, code: str, count: int = 1) -> None:
        """Count dead letters by ``delay-error`` code, after their commit."""
        rejected = self.counters.rejected
        rejected[code] = rejected.get(code, 0) + count

    def observe_lateness(self, lateness_ms: Collection[int]) -> Histogram:
        """Take the lateness of every record of a committed batch, milliseconds, in any order;
        return what was added.
        """
        added = histogram_of(lateness_ms)
        if min(lateness_ms, default=0) < 0:
            self.counters.early += sum(late < 0 for late in lateness_ms)
        self.counters.lateness.add(added)
        return added

    def add_abort(self) -> None:
        """Count a transaction that was aborted or whose outcome is unknown."""
        self.counters.aborts += 1


class AuditFacts(msgspec.Struct):
    """Result of the newest audit: when, of how many records, and how many findings by kind."""

    at_ms: int
    records: int
    findings: dict[str, int]


class ReconcileFacts(msgspec.Struct):
    """Result of the newest comparison of copies.

    Attributes:
        at_ms: when, epoch milliseconds.
        findings: how many of each kind.
        records: pending records that were compared.
        pending: all of them.
        repairs: how many the process that compares has made.
        is_stopped: it makes no more, for their number is used up.
    """

    at_ms: int
    findings: dict[str, int]
    records: int
    pending: int
    repairs: int = 0
    is_stopped: bool = False


class PauseFacts(msgspec.Struct):
    """Every pause that is in force."""

    told: list[Pause]
    """Longest first."""
    counts: dict[str, int]
    """By kind, whether or not they are told one by one."""
    others_at_ms: int | None
    """Since when the longest of those is that are not; None: there are no others."""
