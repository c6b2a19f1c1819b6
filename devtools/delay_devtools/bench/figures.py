"""Results of one bench, and their display."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from delay_devtools.bench.sampling import Sampler
from delay_devtools.bench.tally import BenchVerdict
from delay_devtools.shown import show_lateness, show_numbers
from delayservice.commands.console import out, print_json

US: Final = 1_000_000


@dataclass(slots=True, kw_only=True)
class Figures:
    """Results of one bench, printed as a JSON object; ``docs/internals/benchmarks.md`` explains
    each field.
    """

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

    def judge(
        self, verdicts: Sequence[BenchVerdict], lateness_of: Iterable[BenchVerdict]
    ) -> dict[int, int]:
        for name in ("lost", "duplicated", "early", "altered", "strangers"):
            setattr(self, name, sum(getattr(verdict, name) for verdict in verdicts))
        return self.take_lateness(lateness_of)

    def take_lateness(self, verdicts: Iterable[BenchVerdict]) -> dict[int, int]:
        late: Counter[int] = Counter()
        for verdict in verdicts:
            late.update(verdict.lateness_ms)
        self.lateness_ms_p50 = quantile(late, 0.5)
        self.lateness_ms_p99 = quantile(late, 0.99)
        self.lateness_ms_max = quantile(late, 1.0)
        return late

    def take_memory(self, sampler: Sampler) -> None:
        self.rss_mib_peak = sampler.rss_mib_peak
        self.rss_mib_peak_worker = sampler.rss_mib_peak_largest

    @property
    def is_good(self) -> bool:
        wrong = [self.lost, self.early, self.altered, self.strangers]
        if self.delivery == "exactly_once":
            wrong.append(self.duplicated)
        return not any(wrong)


def quantile(histogram: Mapping[int, int], fraction: float) -> int | None:
    """Return the smallest value up to which at least ``fraction`` of all counts lie."""
    total = sum(histogram.values())
    below = 0
    for value in sorted(histogram):
        below += histogram[value]
        if below >= fraction * total:
            return value
    return None


_DIGITS: Final = 3
# Inclusive upper bounds of the histogram's ranges of lateness, in ms: three to a decade.
_BOUNDS_MS: Final = (
    *(-1, 0),
    *(step * 10**power for power in range(7) for step in (1, 2, 5)),
)


def show(figures: Figures, lateness_ms: Mapping[int, int], *, as_json: bool) -> None:
    found = {
        name: round(value, _DIGITS) if isinstance(value, float) else value
        for name, value in asdict(figures).items()
    }
    if as_json:
        print_json(found)
        return
    show_numbers(out, f"{found['bench']}, {found['delivery']}", found)
    if lateness_ms:
        bars = [
            (label, [(count, "red" if label == "early" else "green")])
            for label, count in buckets(lateness_ms)
        ]
        show_lateness(out, bars)


def buckets(lateness_ms: Mapping[int, int]) -> list[tuple[str, int]]:
    counts = [0] * (len(_BOUNDS_MS) + 1)
    for late, count in lateness_ms.items():
        counts[bisect_left(_BOUNDS_MS, late)] += count
    labels = ["early", *(f"≤ {bound:,} ms" for bound in _BOUNDS_MS[1:]), "later"]
    filled = [index for index, count in enumerate(counts) if count]
    if not filled:
        return []
    return list(zip(labels, counts, strict=True))[filled[0] : filled[-1] + 1]
