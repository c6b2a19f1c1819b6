"""Output of commands: results to standard output, errors to standard error."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import structlog
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from delayservice.base.errors import DelayServiceError

EXIT_ERROR: Final = 1
EXIT_FINDINGS: Final = 3
EXIT_NOTHING: Final = 4
EXIT_NOT_KNOWN: Final = 5
EXIT_NOT_REACHED: Final = 6

# Width of output without a terminal, in columns; 80 would cut the numbers of a table.
_WIDTH_ELSEWHERE: Final = 120

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS_MS: Final = {"day": 86_400_000, "hour": 3_600_000, "minute": 60_000, "second": 1_000}
_NUMBER: Final = re.compile(r"(≤ )?-?[\d,.]+( ms)?|null|-|")

_has_width = sys.stdout.isatty() or bool(os.environ.get("COLUMNS"))
# Ids and places may look like emoji codes: topic:100:7.
_plainly = partial(Console, highlight=False, soft_wrap=True, emoji=False)
out = _plainly(width=None if _has_width else _WIDTH_ELSEWHERE)
err = _plainly(stderr=True)


class RefusedError(DelayServiceError):
    """The request was refused, or did not reach a node: nothing was changed."""


class NothingThereError(RefusedError):
    """The requested object does not exist, or nothing is pending under the id."""


class CommandLine(TyperGroup):
    """A whole command line: errors become one line on standard error and an exit status, and
    ``--debug``, which shows their tracebacks, may stand anywhere before ``--``.
    """

    # Typer has its own copy of click, and shows only this class of it.
    def parse_args(  # type: ignore[override]
        self, ctx: typer.Context, args: list[str]
    ) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        return super().parse_args(ctx, [a for a in args[:end] if a != "--debug"] + args[end:])

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except DelayServiceError as exc:
            if "--debug" in sys.argv:
                err.print_exception()
            print_error(str(exc))
            is_nothing = isinstance(exc, NothingThereError)
            raise typer.Exit(EXIT_NOTHING if is_nothing else EXIT_ERROR) from exc


def log_to_stderr() -> None:
    """Keep what the packages log off standard output; a node sets up its own log."""
    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))


def plain(text: str) -> str:
    """Return the text with unprintable characters, such as controls, replaced by U+FFFD."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def instant(epoch_ms: int, separator: str = " ", *, zone: str = "Z", to: str = "ms") -> str:
    """Return epoch milliseconds as ISO 8601 text in UTC; ``N ms`` outside the years 1 to 9999.
    ``to``: last shown part of the time, ``ms`` or ``minutes``.
    """
    try:
        moment = _EPOCH + timedelta(milliseconds=epoch_ms)
    except OverflowError:
        return f"{epoch_ms} ms"
    spec = "milliseconds" if to == "ms" else to
    return moment.isoformat(separator, spec).replace("+00:00", zone)


def span(ms: float) -> str:
    """Return a length of time in the largest unit that fits twice: ``90 minutes``, ``30 days``."""
    for name, unit_ms in _UNITS_MS.items():
        if abs(ms) >= 2 * unit_ms:
            return f"{round(ms / unit_ms):,} {name}s"
    return f"{round(ms):,} ms"


def from_now(epoch_ms: int) -> str:
    ahead_ms = epoch_ms - time.time_ns() // 1_000_000
    return f"in {span(ahead_ms)}" if ahead_ms >= 0 else f"{span(-ahead_ms)} ago"


def say(console: Console, text: str, style: str = "") -> None:
    # Rich markup and control characters in the text have no effect.
    console.print(plain(text), style=style, markup=False)


def emit(found: object, show: Callable[[], object], *, as_json: bool) -> None:
    """Print a result: as JSON, of which a list or an iterator is one object on each line,
    or as ``show`` does.
    """
    if not as_json:
        show()
        return
    for one in found if isinstance(found, (list, Iterator)) else [found]:
        print_json(one)
    out.file.flush()  # so that a reader gets each line at once


def show_table(names: Sequence[str], rows: Iterable[Sequence[object]], empty: str = "") -> None:
    """Print a table, in which columns of numbers are aligned to the right, and None is left empty;
    without rows, print ``empty`` to standard error.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        err.print(empty, style="dim")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, column in zip(names, zip(*cells, strict=True), strict=True):
        is_number = all(_NUMBER.fullmatch(cell.plain) for cell in column)
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in cells:
        table.add_row(*row)
    out.print(table)


def _cell(value: object) -> Text:
    text = "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
    return Text(plain(text))


def show_facts(facts: Iterable[tuple[str, object]]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in facts:
        table.add_row(name, _cell(text))
    out.print(table)


def print_json(value: object) -> None:
    """Print one JSON object on one line, for programs; unprintable characters are escaped."""
    text = json.dumps(value, ensure_ascii=False)
    if not text.isprintable():  # within strings only: JSON itself is printable
        text = "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)
    # Rich would wrap and colour it. While progress is shown, sys.stdout leads to standard error.
    print(text, file=out.file)


def print_error(message: str) -> None:
    for number, line in enumerate(message.splitlines() or ["unknown error"]):
        err.print("error: " if number == 0 else "       ", style="bold red", end="")
        err.print(plain(line), style="red", markup=False)
