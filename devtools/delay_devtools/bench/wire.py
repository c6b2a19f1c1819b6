"""Protocol between a bench and its helper processes: one JSON object a line.

A helper reads from standard input its plan, in the first line, then command words; it writes each
``Message`` as a line to standard output. The plan contains passwords, and so is not a command-line
argument, which other users could see.

Commands: ``go`` (begin), ``show`` (commit the open transaction), ``stop`` (end early). Messages:
``ready`` (for ``go``), ``progress``, ``done``, ``complete`` (all records have arrived, or the
transaction is committed), ``trace`` (further results), ``failed``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, TypeVar

import msgspec
from confluent_kafka import KafkaException

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

_Plan = TypeVar("_Plan", bound=msgspec.Struct)
_encode = msgspec.json.Encoder().encode


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """Message of a helper. ``count``: records so far; in a load's ``trace``, repeated sends.
    ``at_s``: time of the event, epoch seconds; in a load's ``done``, the duration of sending.
    """

    word: str
    count: int = 0
    at_s: float = 0.0
    why: str = ""
    body: msgspec.Raw = msgspec.Raw(b"null")


def serve(kind: type[_Plan], work: Callable[[_Plan], None]) -> None:
    plan = msgspec.json.decode(sys.stdin.buffer.readline(), type=kind)
    try:
        work(plan)
    except KafkaException as exc:
        tell(FAILED, why=str(exc))


def await_word(word: str) -> None:
    if sys.stdin.buffer.readline().strip() != word.encode():
        sys.exit(1)


def listen() -> SimpleQueue[str]:
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
    raw = msgspec.Raw(b"null" if body is None else _encode(body))
    line = _encode(Message(word, count, at_s, why, raw)) + b"\n"
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
