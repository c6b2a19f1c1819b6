"""What parent and helper processes say to each other: one JSON object a line.

A helper reads its plan from the first line of standard input (not from its arguments, for those are
public and a plan holds client passwords), then words; it writes ``Told`` to standard output.
"""

from __future__ import annotations

import sys
import threading
from queue import SimpleQueue
from typing import Final, TypeVar

import msgspec

READY: Final = "ready"
GO: Final = "go"
SHOW: Final = "show"
STOP: Final = "stop"
PROGRESS: Final = "progress"
DONE: Final = "done"
COMPLETE: Final = "complete"
TRACE: Final = "trace"
FAILED: Final = "failed"

PROGRESS_S: Final = 0.2
"""How often a helper tells how far it is, seconds."""

_Plan = TypeVar("_Plan", bound=msgspec.Struct)
_encode = msgspec.json.Encoder().encode


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a helper.

    Attributes:
        word: what happened, one of the constants above.
        count: how many records so far.
        at_s: when, epoch seconds.
        why: what went wrong.
        body: the result, JSON.
    """

    word: str
    count: int = 0
    at_s: float = 0.0
    why: str = ""
    body: msgspec.Raw = msgspec.Raw(b"null")


def read_plan(kind: type[_Plan]) -> _Plan:
    """In a helper: what it is to do."""
    return msgspec.json.decode(sys.stdin.buffer.readline(), type=kind)


def await_word(word: str) -> None:
    """In a helper: wait for the parent; ends the process when the parent has gone."""
    if sys.stdin.buffer.readline().strip() != word.encode():
        sys.exit(1)


def listen() -> SimpleQueue[str]:
    """In a helper: the parent's words as they come, read on a thread of its own."""
    words: SimpleQueue[str] = SimpleQueue()

    def read() -> None:
        for line in sys.stdin.buffer:
            words.put(line.strip().decode())

    threading.Thread(target=read, name="words", daemon=True).start()
    return words


def tell(
    word: str,
    count: int = 0,
    *,
    at_s: float = 0.0,
    why: str = "",
    body: msgspec.Struct | None = None,
) -> None:
    """In a helper: tell the parent; see ``Told``."""
    raw = msgspec.Raw(b"null" if body is None else _encode(body))
    line = _encode(Told(word, count, at_s, why, raw)) + b"\n"
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
