"""Child processes, killed by a reaper process when this process, their owner, dies."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from delay_devtools import reaper
from delay_devtools.service import tail
from delayservice.base.errors import ClusterError

_TAIL_LINES = 25
_POLL_SECONDS = 0.05


class Reaper:
    """Starts a process that kills the children and removes ``folder`` when this process dies."""

    def __init__(self, folder: Path | None) -> None:
        command = [sys.executable, "-I", "-S", reaper.__file__, str(os.getpid())]
        # A session of its own: Ctrl-C and a killed process group must not reach it.
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [*command, str(folder) if folder else ""],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def watch(self, pid: int) -> None:
        self._send(f"watch {pid} {reaper.start_time(pid) or 'gone'}")

    def forget(self, pid: int) -> None:
        self._send(f"forget {pid}")

    def dismiss(self) -> None:
        # To be called when all children have stopped: the reaper kills nothing then, and leaves the
        # folder.
        self._send("dismiss")
        with contextlib.suppress(OSError):
            if self._process.stdin:
                self._process.stdin.close()
        self._process.wait()

    def _send(self, line: str) -> None:
        if self._process.stdin is None:
            return
        try:
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
        except OSError as exc:
            raise ClusterError(
                f"The reaper of the embedded cluster (process {self._process.pid}) is gone: {exc}. "
                "Stop the cluster; its processes may have to be stopped by hand."
            ) from exc


class Child:
    def __init__(
        self, name: str, command: Sequence[str | Path], log_path: Path, reaper_: Reaper
    ) -> None:
        self.name = name
        self.log_path = log_path
        self._reaper = reaper_
        with log_path.open("ab") as log:
            self._log_start = log.tell()
            # A session of its own: on Ctrl-C the owner decides the order of the stop.
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        reaper_.watch(self.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        # A frozen process (SIGSTOP) counts as running.
        return self._process.poll() is None

    def stop(self, *, kill: bool, timeout_seconds: float = 30) -> None:
        if self.running:
            self.signal(signal.SIGKILL if kill else signal.SIGTERM)
            try:
                self._process.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._reaper.forget(self.pid)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait_exit(self, timeout_seconds: float) -> None:
        try:
            status = self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired as exc:
            self.stop(kill=True)
            raise ClusterError(self.explain(f"took longer than {timeout_seconds:g} s")) from exc
        self._reaper.forget(self.pid)
        if status:
            raise ClusterError(self.explain(f"ended with status {status}"))

    def wait_until(self, ready: Callable[[], bool], deadline: float) -> None:
        while not ready():
            with contextlib.suppress(subprocess.TimeoutExpired):
                # Pause between two probes, cut short when the process ends.
                status = self._process.wait(_POLL_SECONDS)
                raise ClusterError(self.explain(f"ended with status {status}"))
            if time.monotonic() > deadline:
                raise ClusterError(self.explain("was not ready in time"))

    def explain(self, what: str) -> str:
        return (
            f"{self.name} {what}. The end of its log:\n{self.log_tail()}\n"
            "Look for the first error there; if it is about memory, set DELAY_DEV_HEAP to less. "
            f"A cluster that keeps its folder leaves the whole log: {self.log_path}"
        )

    def log_tail(self) -> str:
        return tail(self.log_path, _TAIL_LINES, self._log_start)
