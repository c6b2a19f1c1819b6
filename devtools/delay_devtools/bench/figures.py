"""What a run found. Every bench fills what it can; the rest stays None (null in JSON)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from delay_devtools.bench.tally import Verdict


@dataclass(slots=True, kw_only=True)
class Figures:
    """JSON object of a run; ``docs/internals/benchmarks.md`` explains each field."""

    bench: str
    store: str | None = None
    delivery: str
    n: int | None = None
    rate_per_s: float | None = None
    passthrough_per_s: float | None = None
    ratio: float | None = None
    cpu_us_per_message: float | None = None
    passthrough_cpu_us_per_message: float | None = None
    rss_mib_peak: float | None = None
    lateness_ms_p50: int | None = None
    lateness_ms_p99: int | None = None
    lateness_ms_max: int | None = None
    lost: int | None = None
    duplicated: int | None = None
    early: int | None = None
    altered: int | None = None
    strangers: int | None = None
    rate_per_s_min: float | None = None
    rate_per_s_max: float | None = None
    ratio_min: float | None = None
    ratio_max: float | None = None
    ingest_per_s: float | None = None
    deliver_per_s: float | None = None
    transactions: int | None = None
    aborts: int | None = None
    records_per_transaction: float | None = None
    broker_cpu_us_per_message: float | None = None
    rss_mib_peak_worker: float | None = None
    rss_mib_slope_per_h: float | None = None
    disk_bytes_per_message: float | None = None
    pending: int | None = None
    serving_s: float | None = None
    took_over_s: float | None = None
    first_delivery_s: float | None = None
    trials: int | None = None
    takeover_s_p50: float | None = None
    takeover_s_p99: float | None = None
    takeover_s_max: float | None = None
    session_timeout_s: float | None = None
    zookeeper_tick_s: float | None = None
    handovers: int | None = None
    handover_ms_p50: int | None = None
    handover_ms_p99: int | None = None
    handover_ms_max: int | None = None
    handover_seen_ms_p99: int | None = None
    cpu_percent: float | None = None
    startup_s: float | None = None
    cpu_percent_per_node: float | None = None
    threads_per_slice: float | None = None
    rss_kib_per_slice: float | None = None
    shards: int | None = None
    slices: int | None = None
    nodes: int | None = None
    seconds: float | None = None
    size: int | None = None
    partitions: int | None = None
    workers: int | None = None
    rounds: int | None = None
    seed: int | None = None
    cores: int | None = None
    version: str | None = None

    def judge(self, verdicts: Iterable[Verdict], lateness_of: Iterable[Verdict]) -> dict[int, int]:
        """Take what judges found; the lateness histogram.

        Args:
            verdicts: of every load; what is wrong with any counts.
            lateness_of: those whose lateness is the bench's.
        """
        wrong = list(verdicts)
        self.lost = sum(verdict.lost for verdict in wrong)
        self.duplicated = sum(verdict.duplicated for verdict in wrong)
        self.early = sum(verdict.early for verdict in wrong)
        self.altered = sum(verdict.altered for verdict in wrong)
        self.strangers = sum(verdict.strangers for verdict in wrong)
        late = merged(verdict.lateness_ms for verdict in lateness_of)
        self.lateness_ms_p50 = quantile(late, 0.5)
        self.lateness_ms_p99 = quantile(late, 0.99)
        self.lateness_ms_max = quantile(late, 1.0)
        return late

    @property
    def is_good(self) -> bool:
        """Nothing lost, early, altered or invented, and nothing doubled unless a crash may."""
        wrong = [self.lost, self.early, self.altered, self.strangers]
        if self.delivery == "exactly_once":
            wrong.append(self.duplicated)
        return not any(wrong)


def merged(histograms: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """All together: counts by value."""
    together: dict[int, int] = {}
    for histogram in histograms:
        for value, count in histogram.items():
            together[value] = together.get(value, 0) + count
    return together


def quantile(histogram: Mapping[int, int], fraction: float) -> int | None:
    """The smallest value that this fraction of all is at or below; None of nothing."""
    total = sum(histogram.values())
    below = 0
    for value in sorted(histogram):
        below += histogram[value]
        if below >= fraction * total:
            return value
    return None
