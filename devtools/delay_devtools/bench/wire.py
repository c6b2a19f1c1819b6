"""Protocol between a bench and its helper processes: one JSON object a line.

A helper reads from standard input its plan, in the first line, then command words; it writes each
``Message`` as a line to standard output. The plan contains passwords, and so is not a command-line
argument, which other users could see.

Commands: ``go`` (begin), ``show`` (commit the open transaction), ``stop`` (end early). Messages:
``ready`` (for ``go``), ``progress``, ``done``, ``complete`` (all records have arrived, or the
transaction is committed), ``trace`` (further results), ``failed``.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Final, TypeVar

import msgspec
from confluent_kafka import KafkaException

from delay_devtools import guard
from delay_devtools.service import tail
from delayservice.base.errors import DelayServiceError

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


_STOP_TIMEOUT_S: Final = 10.0
_TIMEOUT_S: Final = 1_800.0
_Result = TypeVar("_Result", bound=msgspec.Struct)
_decode = msgspec.json.Decoder(Message).decode


class Helper:
    """Helper process of a bench: it sends, checks or copies records, as its plan says."""

    def __init__(
        self,
        module: str,
        plan: msgspec.Struct,
        log_path: Path,
        progress: Callable[[int], None],
    ) -> None:
        self._name = module.rpartition(".")[2]
        self._log_path = log_path
        self._progress = progress
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        words = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid())]
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 (our own program)
                [*words, sys.executable, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, name=self._name, daemon=True)
        self._reader.start()
        self._write(msgspec.json.encode(plan))

    def _read(self) -> None:
        if self._process.stdout is not None:
            for line in self._process.stdout:
                message = _decode(line)
                if message.word == PROGRESS:
                    self._progress(message.count)
                else:
                    self._messages.put(message)
        self._messages.put(None)

    def tell(self, word: str) -> None:
        self._write(word.encode())

    def work(self, timeout_s: float = _TIMEOUT_S) -> Message:
        self.tell(GO)
        return self.expect(DONE, timeout_s)

    def show(self) -> float:
        # The time is that right before the commit.
        self.tell(SHOW)
        return self.expect(COMPLETE).at_s

    def result(self, word: str, kind: type[_Result]) -> _Result:
        return msgspec.json.decode(self.expect(word).body, type=kind)

    def _write(self, line: bytes) -> None:
        if self._process.stdin is None:
            return
        try:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
        except OSError as exc:
            raise DelayServiceError(self._ended()) from exc

    def expect(self, word: str, timeout_s: float = _TIMEOUT_S) -> Message:
        while True:
            try:
                message = self._messages.get(timeout=timeout_s)
            except queue.Empty:
                raise DelayServiceError(
                    f"{self._name} did not get to {word!r} within {timeout_s:.0f} s; its log "
                    f"ends:\n{tail(self._log_path)}"
                ) from None
            if message is None:
                raise DelayServiceError(self._ended())
            if message.word == FAILED:
                raise DelayServiceError(f"{self._name}: {message.why}")
            if message.word == word:
                return message

    def _ended(self) -> str:
        return f"{self._name} ended before it was done; its log ends:\n{tail(self._log_path)}"

    def close(self) -> None:
        self._process.kill()
        self._process.wait(_STOP_TIMEOUT_S)
        self._reader.join(_STOP_TIMEOUT_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
