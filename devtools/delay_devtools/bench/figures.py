"""Results of one bench, and their display."""

from __future__ import annotations

import platform
import sys
import sysconfig
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from delay_devtools.shown import show_numbers
from delayservice import __version__
from delayservice.commands.console import out, print_json
from delayservice.smoke.judge import Verdict, quantile

US: Final = 1_000_000


def interpreter() -> str:
    """Return the version of Python, and whether it was built with profiles: a plain build takes a
    fifth more time. Debian's does not name its options.
    """
    options = sysconfig.get_config_var("CONFIG_ARGS") or ""
    is_fast = "--enable-optimizations" in options or sys.base_prefix == "/usr"
    return f"{platform.python_version()}, {'optimised' if is_fast else 'plain'} build"


@dataclass(slots=True, kw_only=True)
class Figures:
    """Results of one bench, printed as a JSON object; ``docs/internals/benchmarks.md`` explains
    each field.
    """

    bench: str
    delivery: str
    store: str
    partitions: int
    workers: int
    size: int
    cores: int | None = None
    version: str = __version__
    python: str = field(default_factory=interpreter)
    n: int | None = None
    seconds: float | None = None
    rate_per_s: float | None = None
    rounds: int | None = None
    passthrough_per_s: float | None = None
    ratio: float | None = None
    ratio_min: float | None = None
    ratio_max: float | None = None
    ingest_per_s: float | None = None
    deliver_per_s: float | None = None
    cpu_percent: float | None = None
    cpu_us_per_message: float | None = None
    broker_cpu_us_per_message: float | None = None
    transactions: int | None = None
    aborts: int | None = None
    floor_lateness_ms_p50: int | None = None
    floor_lateness_ms_p99: int | None = None
    floor_cpu_us_per_message: float | None = None
    floor_broker_cpu_us_per_message: float | None = None
    records_per_transaction: float | None = None
    rss_mib_peak: float | None = None
    rss_mib_growth: float | None = None
    disk_bytes_per_message: float | None = None
    took_over_s: float | None = None
    first_delivery_s: float | None = None
    session_timeout_s: float | None = None
    takeover_s_p50: float | None = None
    takeover_s_p99: float | None = None
    takeover_s_max: float | None = None
    handovers: int | None = None
    handover_ms_p50: int | None = None
    handover_ms_p99: int | None = None
    handover_ms_max: int | None = None
    lateness_ms_p50: int | None = None
    lateness_ms_p99: int | None = None
    lateness_ms_max: int | None = None
    lost: int | None = None
    duplicated: int | None = None
    early: int | None = None
    altered: int | None = None
    strangers: int | None = None

    def judge(self, verdicts: Sequence[Verdict], lateness_of: Sequence[Verdict]) -> None:
        for name in ("lost", "duplicated", "early", "altered", "strangers"):
            setattr(self, name, sum(getattr(verdict, name) for verdict in verdicts))
        late: Counter[int] = Counter()
        for verdict in lateness_of:
            late.update(verdict.lateness_ms)
        self.lateness_ms_p50 = quantile(late, 0.5)
        self.lateness_ms_p99 = quantile(late, 0.99)
        self.lateness_ms_max = quantile(late, 1.0)

    @property
    def is_good(self) -> bool:
        wrong = [self.lost, self.early, self.altered, self.strangers]
        if self.delivery == "exactly_once":
            wrong.append(self.duplicated)
        return not any(wrong)


_DIGITS: Final = 3


def show(figures: Figures, *, as_json: bool) -> None:
    found = {
        name: round(value, _DIGITS) if isinstance(value, float) else value
        for name, value in asdict(figures).items()
    }
    if as_json:
        print_json(found)
    else:
        show_numbers(out, f"{found['bench']}, {found['delivery']}", found)
