"""Output of commands: results to standard output, errors to standard error."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime, timedelta
from typing import Final

from rich.console import Console

# Width of output without a terminal, in columns; 80 would cut the numbers of a table.
_WIDTH_ELSEWHERE: Final = 120

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_has_width = sys.stdout.isatty() or bool(os.environ.get("COLUMNS"))
out = Console(highlight=False, soft_wrap=True, width=None if _has_width else _WIDTH_ELSEWHERE)
err = Console(stderr=True, highlight=False, soft_wrap=True)


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


def say(console: Console, text: str, style: str) -> None:
    # Rich markup and control characters in the text have no effect.
    console.print(plain(text), style=style, markup=False)


def print_json(value: object) -> None:
    """Print one JSON object on one line, for programs; unprintable characters are escaped."""
    text = json.dumps(value, ensure_ascii=False)
    if not text.isprintable():  # within strings only: JSON itself is printable
        text = "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)
    print(text)  # noqa: T201 (rich would wrap and colour it)


def print_error(message: str) -> None:
    for number, line in enumerate(message.splitlines() or ["unknown error"]):
        err.print("error: " if number == 0 else "       ", style="bold red", end="")
        err.print(plain(line), style="red", markup=False)
