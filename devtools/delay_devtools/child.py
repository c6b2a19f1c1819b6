"""Child processes, which end with this process, however it ends."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Final

from delay_devtools import guard, reaper
from delayservice.base.errors import ClusterError

START_S: Final = 60.0
STOP_S: Final = 30.0
_TAIL_LINES = 25
_TAIL_BYTES = 64 * 1024
_POLL_S = 0.02
# The kernel kills guarded processes when the thread that started them ends: this one lasts.
_STARTER = ThreadPoolExecutor(1, "starter")


def start(
    command: Sequence[str | Path],
    log: IO[bytes],
    *,
    pipe: int = subprocess.DEVNULL,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, so that on Ctrl-C this process decides about it.
    ``pipe``: ``PIPE`` to talk with it over its standard input and output.
    """
    words = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), *map(str, command)]

    def popen() -> subprocess.Popen[bytes]:
        out = log if pipe == subprocess.DEVNULL else pipe
        return subprocess.Popen(  # noqa: S603 - our own program
            words, stdin=pipe, stdout=out, stderr=log, env=env, start_new_session=True
        )

    return _STARTER.submit(popen).result()


def remover(folder: Path) -> subprocess.Popen[bytes]:
    """Start a process that removes ``folder`` when this one dies; kill it to keep the folder."""
    words = [sys.executable, "-I", "-S", reaper.__file__, str(os.getpid()), str(folder)]
    return subprocess.Popen(words, start_new_session=True)  # noqa: S603 - our own program


def tail(path: Path, lines: int = _TAIL_LINES, start: int = 0) -> str:
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(start, end - _TAIL_BYTES))
            found = file.read().decode(errors="replace").splitlines()
    except OSError as exc:
        return f"(unreadable: {exc})"
    return "\n".join(found[-lines:]) or "(empty)"


class Child:
    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        log_path: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log_path = log_path
        with log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = start(command, log, env=env)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        # A frozen process (SIGSTOP) counts as running.
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self, *, kill: bool) -> None:
        self.signal(signal.SIGKILL if kill else signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def wait_exit(self, timeout_s: float) -> None:
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as exc:
            self.end(kill=True)
            raise ClusterError(self.explain(f"took longer than {timeout_s:g} s")) from exc
        if status:
            raise ClusterError(self.explain(f"ended with status {status}"))

    def wait_until(
        self, ready: Callable[[], bool], timeout_s: float = START_S, what: str = "ready"
    ) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not ready():
            with contextlib.suppress(subprocess.TimeoutExpired):
                # Pause between two probes, cut short when the process ends.
                status = self._process.wait(_POLL_S)
                raise ClusterError(self.explain(f"ended with status {status}"))
            if time.monotonic() > deadline_s:
                raise ClusterError(self.explain(f"was not {what} within {timeout_s:.0f} s"))

    def explain(self, what: str) -> str:
        return (
            f"{self.name} {what}. The end of its log ({self.log_path}):\n{self.log_tail()}\n"
            "Look for the first error there; if it is about memory, set DELAY_DEV_HEAP to less."
        )

    def log_tail(self) -> str:
        return tail(self.log_path, start=self._log_start)
