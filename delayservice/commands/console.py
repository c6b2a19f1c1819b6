"""Output of commands: results to standard output, errors to standard error."""

from __future__ import annotations

import json
import os
import sys
from typing import Final

from rich.console import Console

_WIDTH_ELSEWHERE: Final = 120
"""A pipe has no width of its own, and the usual 80 columns would cut the numbers of a table."""

_has_width = sys.stdout.isatty() or bool(os.environ.get("COLUMNS"))
out = Console(highlight=False, soft_wrap=True, width=None if _has_width else _WIDTH_ELSEWHERE)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def plain(text: str) -> str:
    """Replace characters that steer a terminal or turn the order of what is read."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def say(console: Console, text: str, style: str) -> None:
    """A line with text of others in it."""
    console.print(plain(text), style=style, markup=False)


def print_json(value: object) -> None:
    """Write one JSON object on one line, for programs; what can't be printed is escaped."""
    text = json.dumps(value, ensure_ascii=False)
    if not text.isprintable():  # within strings only: JSON itself is printable
        text = "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)
    print(text)  # noqa: T201 (rich would wrap and colour it)


def print_error(message: str) -> None:
    """Write an error in red, a line for each finding. The message is text, never markup."""
    for number, line in enumerate(message.splitlines() or ["unknown error"]):
        err.print("error: " if number == 0 else "       ", style="bold red", end="")
        err.print(plain(line), style="red", markup=False)
