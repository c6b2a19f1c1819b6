"""A real service process for the demo, tests and benchmarks: started, watched, killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import psutil

from delay_devtools import guard
from delayservice.base import faults
from delayservice.base.errors import ClusterError

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0
PROGRAM: Final = ("-m", "delayservice")
"""What Python runs."""


class ServiceProcess:
    """``delayservice run`` in a process tree of its own.

    Args:
        sets: ``section.key=value`` settings.
        log_path: its log lines, JSON, appended.
        fault: a fault point that the workers stop or die at (``faults.POINTS``).
        environment: more environment variables.
        program: what Python runs instead of the service as it is.
        wrapper: a command that becomes the service's by ``exec``, such as ``ip netns exec NAME``.
    """

    def __init__(
        self,
        sets: Sequence[str],
        log_path: Path,
        *,
        fault: str = "",
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = PROGRAM,
        wrapper: Sequence[str] = (),
    ) -> None:
        self._log_path = log_path
        self._log_start = log_path.stat().st_size if log_path.exists() else 0
        # Under the guard: whatever ends this process, the service does not outlive it.
        command = [*wrapper, sys.executable, "-I", guard.__file__, str(os.getpid())]
        command += [sys.executable, *program, "run"]
        for setting in [*sets, "log.format=json"]:
            command += ["--set", setting]
        env = {**os.environ, **(environment or {})}
        env.pop(faults.VARIABLE, None)
        if fault:
            env[faults.VARIABLE] = fault
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  # our own program
                command, stdout=log, stderr=log, env=env, start_new_session=True
            )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        """The process is running already."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing behind."""
        self.kill()

    @property
    def running(self) -> bool:
        """Return whether its supervisor is there."""
        return self._process.poll() is None

    def events(self, name: str) -> list[dict[str, Any]]:
        """Log lines of this life whose message is ``name``."""
        found = []
        with self._log_path.open("rb") as log:
            log.seek(self._log_start)
            for line in log:
                if name.encode() not in line:
                    continue
                try:
                    event = json.loads(line)
                except ValueError:
                    continue  # a line that is being written
                if event.get("message") == name:
                    found.append(event)
        return found

    def wait_serving(self, slices: int, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until every slice has an owner.

        Raises:
            ClusterError: it did not happen in time, or the process ended; with the log's tail.
        """
        self._wait(
            lambda: len({e["slice"] for e in self.events("took_over")}) >= slices,
            f"the service did not serve {slices} slices",
            timeout_s,
        )

    def wait_stopped(self, timeout_s: float = START_TIMEOUT_S) -> bool:
        """Wait until one of its processes has stopped at a fault point; False if none did."""
        try:
            self._wait(self._has_stopped_itself, "no process stopped", timeout_s)
        except ClusterError:
            return False
        return True

    def _has_stopped_itself(self) -> bool:
        return any(p.status() == psutil.STATUS_STOPPED for p in self._tree())

    def _wait(self, condition: Any, complaint: str, timeout_s: float) -> None:  # noqa: ANN401
        deadline_s = time.monotonic() + timeout_s
        tick = threading.Event()  # awaited with a bound: the condition lies in another process
        while not condition():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise ClusterError(
                    f"{complaint} within {timeout_s:.0f} s "
                    f"(exit status {self._process.poll()}); its log ends:\n{self.log_tail()}"
                )
            tick.wait(0.02)

    def log_tail(self) -> str:
        """Return the last lines of its log, for a report of its failure."""
        return "\n".join(self._log_path.read_text(errors="replace").splitlines()[-15:])

    def _tree(self) -> list[psutil.Process]:
        try:
            top = psutil.Process(self.pid)
            return [top, *top.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def workers(self) -> list[psutil.Process]:
        """Its worker processes."""
        return [p for p in self._tree()[1:] if "spawn_main" in " ".join(p.cmdline())]

    def freeze(self) -> None:
        """Send SIGSTOP to every process of the tree at once: none is left to notice."""
        os.killpg(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT to every process of the tree at once."""
        os.killpg(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to every process of the tree at once."""
        tree = self._tree()
        for process in tree:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self._process.wait(STOP_TIMEOUT_S)
        # Dead is enough: who has to reap a worker whose parent is gone may take seconds.
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        tick = threading.Event()
        while any(_is_alive(process) for process in tree) and time.monotonic() < deadline_s:
            tick.wait(0.005)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """SIGTERM, and the exit status."""
        self._process.terminate()
        return self._process.wait(timeout_s)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
