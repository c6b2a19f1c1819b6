"""What the demo shows at its end: a histogram, a table, and numbers for machines."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from delayservice.dev.judge import Verdict
from delayservice.dev.load import Planned

_BUCKETS_MS: Final = (5, 10, 20, 30, 50, 80, 120, 150, 250, 500, 1_000, 2_500, 5_000, 60_000)
_BAR_WIDTH: Final = 46
AROUND_RESTART_MS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Kill:
    """One SIGKILL. Times are epoch milliseconds; ``uncommitted`` counts offsets of open
    transactions in the target topics at that moment: outputs flushed and not committed.
    """

    at_ms: int
    how: str
    uncommitted: int
    serving_ms: int


@dataclass(frozen=True, slots=True)
class Report:
    """The demo's facts. ``sent``: each record with its append time."""

    records: int
    verdict: Verdict
    sent: Sequence[tuple[Planned, int]]
    kills: tuple[Kill, ...]
    delivery: str
    store: str

    def lateness_ms(self, *, around_restarts: bool) -> list[int]:
        """Ascending: when the consumer had each record in hand, minus its due time.

        A record belongs to a restart when it was due from half a second before the kill until one
        and a half seconds after the service was back: two seconds around the moment at which nobody
        served, on top of that moment itself.
        """
        spans = [
            (kill.at_ms - AROUND_RESTART_MS // 4, kill.serving_ms + AROUND_RESTART_MS * 3 // 4)
            for kill in self.kills
        ]
        return sorted(
            arrival.seen_ms - arrival.due_ms
            for arrival in self.verdict.arrivals.values()
            if any(a <= arrival.due_ms <= b for a, b in spans) == around_restarts
        )

    def summary(self, seconds: float) -> dict[str, float]:
        """The last line. ``lateness_ms_*`` leaves out what was due around a restart, and
        ``lateness_ms_around_restarts_max`` is the worst of that.
        """
        verdict = self.verdict
        late = self.lateness_ms(around_restarts=False)
        around = self.lateness_ms(around_restarts=True)
        return {
            "sent": len(self.sent),
            "delivered": len(verdict.arrivals),
            "lost": len(verdict.lost),
            "duplicated": len(verdict.duplicated),
            "early": len(verdict.early),
            "altered": len(verdict.altered) + len(verdict.strangers),
            "kills": len(self.kills),
            "kills_in_open_transaction": sum(kill.uncommitted > 0 for kill in self.kills),
            "lateness_ms_p50": quantile(late, 0.5),
            "lateness_ms_p99": quantile(late, 0.99),
            "lateness_ms_max": quantile(late, 1.0),
            "lateness_ms_around_restarts_max": quantile(around, 1.0),
            "seconds": round(seconds, 1),
        }


def quantile(ascending: Sequence[int], fraction: float) -> int:
    """The smallest value that this fraction of all is at or below; 0 of nothing."""
    if not ascending:
        return 0
    return ascending[max(int(len(ascending) * fraction + 0.999999) - 1, 0)]


def show(console: Console, report: Report, seconds: float) -> None:
    """The histogram and the tables."""
    _show_histogram(console, report)
    _show_kills(console, report)
    _show_verdict(console, report, seconds)


def _show_histogram(console: Console, report: Report) -> None:
    steady = _counts(report.lateness_ms(around_restarts=False))
    around = _counts(report.lateness_ms(around_restarts=True))
    most = max((a + b for a, b in zip(steady, around, strict=True)), default=1) or 1
    console.print("\n[bold]Lateness[/], as the consumer saw it", highlight=False)
    table = Table(box=None, show_header=False, pad_edge=False)
    for bound, steady_count, around_count in zip(_BUCKETS_MS, steady, around, strict=True):
        if not steady_count and not around_count:
            continue
        bar = Text("█" * round(steady_count / most * _BAR_WIDTH), style="green")
        bar.append("█" * round(around_count / most * _BAR_WIDTH), style="yellow")
        table.add_row(f"≤ {bound} ms", bar, f"{steady_count + around_count:,}")
    console.print(table)
    console.print("[green]█[/] at work   [yellow]█[/] due around a restart\n", highlight=False)


def _counts(ascending: Sequence[int]) -> list[int]:
    counts = [0] * len(_BUCKETS_MS)
    for late in ascending:
        counts[min(bisect_left(_BUCKETS_MS, late), len(counts) - 1)] += 1
    return counts


def _show_kills(console: Console, report: Report) -> None:
    if not report.kills:
        return
    first_ms = report.kills[0].at_ms
    table = Table("kill", "after", "when", "outputs at the broker, uncommitted", "back in")
    for number, kill in enumerate(report.kills, 1):
        table.add_row(
            str(number),
            f"{(kill.at_ms - first_ms) / 1000:.1f} s",
            kill.how,
            f"{kill.uncommitted:,}" if kill.uncommitted else "-",
            f"{(kill.serving_ms - kill.at_ms) / 1000:.1f} s",
        )
    console.print(table)


def _show_verdict(console: Console, report: Report, seconds: float) -> None:
    summary = report.summary(seconds)
    table = Table(show_header=False, title=f"{report.delivery}, {report.store} store")
    for name, value in summary.items():
        wrong = name in ("lost", "duplicated", "early", "altered") and value
        table.add_row(name, Text(f"{value:,}", style="bold red" if wrong else "bold"))
    console.print(table)
    for what in ("lost", "duplicated", "early", "altered", "strangers"):
        uids = getattr(report.verdict, what)
        if uids:
            shown = ", ".join(uid.decode(errors="replace") for uid in uids[:5])
            console.print(f"[bold red]{what}:[/] {shown}{' …' if len(uids) > 5 else ''}")  # noqa: PLR2004
