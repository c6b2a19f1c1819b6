"""The parent's end of a helper process."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from delay_devtools import guard
from delay_devtools.bench import wire
from delay_devtools.bench.wire import Told
from delay_devtools.node_log import tail
from delayservice.base.errors import DelayServiceError

_STOP_TIMEOUT_S: Final = 10.0
_decode = msgspec.json.Decoder(Told).decode


def _ignore(_count: int) -> None:
    pass


class Helper:
    """A process that loads, judges or passes through, as its plan says.

    Args:
        module: what it runs.
        plan: handed to it.
        log_path: its standard error, appended.
        progress: told how many records it has done, from another thread.
    """

    def __init__(
        self,
        module: str,
        plan: msgspec.Struct,
        log_path: Path,
        progress: Callable[[int], None] = _ignore,
    ) -> None:
        self._name = module.rpartition(".")[2]
        self._log_path = log_path
        self._progress = progress
        self._told: queue.SimpleQueue[Told | None] = queue.SimpleQueue()
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

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def _read(self) -> None:
        if self._process.stdout is not None:
            for line in self._process.stdout:
                told = _decode(line)
                if told.word == wire.PROGRESS:
                    self._progress(told.count)
                else:
                    self._told.put(told)
        self._told.put(None)

    def tell(self, word: str) -> None:
        """Send it a word."""
        self._write(word.encode())

    def _write(self, line: bytes) -> None:
        if self._process.stdin is None:
            return
        try:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
        except OSError as exc:
            raise DelayServiceError(self._ended()) from exc

    def expect(self, *words: str, timeout_s: float) -> Told:
        """Wait for a message of one of these kinds; others before it are dropped.

        Raises:
            DelayServiceError: the helper failed or ended, or said nothing in time.
        """
        while True:
            try:
                told = self._told.get(timeout=timeout_s)
            except queue.Empty:
                raise DelayServiceError(
                    f"{self._name} did not get to {words[0]!r} within {timeout_s:.0f} s; its log "
                    f"ends:\n{tail(self._log_path)}"
                ) from None
            if told is None:
                raise DelayServiceError(self._ended())
            if told.word == wire.FAILED:
                raise DelayServiceError(f"{self._name}: {told.why}")
            if told.word in words:
                return told

    def _ended(self) -> str:
        return f"{self._name} ended before it was done; its log ends:\n{tail(self._log_path)}"

    def close(self) -> None:
        """End the process. May be called twice."""
        self._process.kill()
        self._process.wait(_STOP_TIMEOUT_S)
        self._reader.join(_STOP_TIMEOUT_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
