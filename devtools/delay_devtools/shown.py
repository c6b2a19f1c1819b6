"""Parts of reports for people: a histogram of lateness, a table of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from rich.console import Console
from rich.table import Table
from rich.text import Text

WRONG: Final = frozenset({"lost", "duplicated", "early", "altered", "unwanted", "strangers"})
_BAR_WIDTH: Final = 50

LatenessBar: TypeAlias = tuple[str, Sequence[tuple[int, str]]]


def show_lateness(console: Console, bars: Sequence[LatenessBar]) -> None:
    most = max((sum(count for count, _ in parts) for _, parts in bars), default=0) or 1
    console.print("\n[bold]Lateness[/], as the consumer saw it", highlight=False)
    table = Table(box=None, show_header=False, pad_edge=False)
    for justify in ("right", "left", "right"):
        table.add_column(justify=justify, no_wrap=True)
    for label, parts in bars:
        bar = Text()
        for count, style in parts:
            bar.append("█" * max(round(count / most * _BAR_WIDTH), 1 if count else 0), style)
        table.add_row(label, bar, f"{sum(count for count, _ in parts):,}")
    console.print(table)


def show_numbers(console: Console, title: str, found: Mapping[str, object]) -> None:
    table = Table(show_header=False, title=title)
    table.add_column()
    table.add_column(justify="right")
    for name, value in found.items():
        if value is not None:
            shown = f"{value:,}" if isinstance(value, int | float) else str(value)
            table.add_row(name, Text(shown, "bold red" if name in WRONG and value else "bold"))
    console.print(table)
