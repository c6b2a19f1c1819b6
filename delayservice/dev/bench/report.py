"""What a run shows at its end: one JSON object for programs; a table and a histogram for people."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from delayservice.commands.console import out, print_json
from delayservice.dev.bench.figures import Figures

_DIGITS: Final = 3
_BOUNDS_MS: Final = (
    *(-1, 0),
    *(step * 10**power for power in range(7) for step in (1, 2, 5)),
)
"""Upper bounds of the shown buckets, inclusive: three to a decade, as lateness spans many."""
_BAR_WIDTH: Final = 50
_WRONG: Final = frozenset({"lost", "duplicated", "early", "altered", "strangers"})


def show(figures: Figures, lateness_ms: Mapping[int, int], *, as_json: bool) -> None:
    """Write it to standard output."""
    found = {name: _rounded(value) for name, value in asdict(figures).items()}
    if as_json:
        print_json(found)
        return
    _show_table(out, found)
    if lateness_ms:
        _show_histogram(out, lateness_ms)


def _rounded(value: object) -> object:
    return round(value, _DIGITS) if isinstance(value, float) else value


def _show_table(console: Console, found: Mapping[str, object]) -> None:
    table = Table(show_header=False, title=f"{found['bench']}, {found['delivery']}")
    table.add_column()
    table.add_column(justify="right")
    for name, value in found.items():
        if value is not None:
            shown = f"{value:,}" if isinstance(value, int | float) else str(value)
            table.add_row(name, Text(shown, "bold red" if name in _WRONG and value else "bold"))
    console.print(table)


def _show_histogram(console: Console, lateness_ms: Mapping[int, int]) -> None:
    counts = buckets(lateness_ms)
    most = max(count for _, count in counts)
    console.print("\n[bold]Lateness[/], as the consumer saw it")
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for label, count in counts:
        bar = "█" * max(round(count / most * _BAR_WIDTH), 1 if count else 0)
        table.add_row(label, Text(bar, "red" if label == "early" else "green"), f"{count:,}")
    console.print(table)


def buckets(lateness_ms: Mapping[int, int]) -> list[tuple[str, int]]:
    """Labels and counts from the first bucket that holds any to the last."""
    counts = [0] * (len(_BOUNDS_MS) + 1)
    for late, count in lateness_ms.items():
        counts[bisect_left(_BOUNDS_MS, late)] += count
    labels = ["early", *(f"≤ {bound:,} ms" for bound in _BOUNDS_MS[1:]), "later"]
    filled = [index for index, count in enumerate(counts) if count]
    if not filled:
        return []
    return list(zip(labels, counts, strict=True))[filled[0] : filled[-1] + 1]
