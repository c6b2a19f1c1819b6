"""A process tree of the service: started, watched, killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import psutil

from delay_devtools import guard
from delayservice.base import faults
from delayservice.base.errors import ClusterError

_TAIL_BYTES: Final = 64 * 1024


class NodeLog:
    """Reader of a node's JSON log from ``start`` on; ``keep``: values of ``message``, empty for
    all.
    """

    def __init__(self, path: Path, start: int = 0, keep: Collection[str] = ()) -> None:
        self._path = path
        self._read_to = start
        self._keep = keep
        self._lines: list[dict[str, Any]] = []

    def lines(self, *names: str) -> list[dict[str, Any]]:
        self.read_on()
        return [line for line in self._lines if not names or line.get("message") in names]

    def read_on(self) -> list[dict[str, Any]]:
        # An incomplete line is read with the next call. Lines that are no JSON objects are skipped.
        before = len(self._lines)
        if self._path.exists():
            with self._path.open("rb") as log:
                log.seek(self._read_to)
                for raw in log:
                    if not raw.endswith(b"\n"):
                        break  # being written
                    self._read_to += len(raw)
                    self._take(raw)
        return self._lines[before:]

    def _take(self, raw: bytes) -> None:
        if self._keep and not any(name.encode() in raw for name in self._keep):
            return
        try:
            line = json.loads(raw)
        except ValueError:
            return  # a traceback, or a line that was torn by a kill
        if isinstance(line, dict) and (not self._keep or line.get("message") in self._keep):
            self._lines.append(line)


def tail(path: Path, lines: int = 15, start: int = 0) -> str:
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(start, end - _TAIL_BYTES))
            found = file.read().decode(errors="replace").splitlines()
    except OSError as exc:
        return f"(unreadable: {exc})"
    return "\n".join(found[-lines:]) or "(empty)"


START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0
PROGRAM: Final = ("-m", "delayservice")
"""Arguments of Python that start the service."""


class ServiceProcess:
    """Process tree of ``delayservice run``, started by the constructor.

    Args:
        sets: ``section.key=value`` settings.
        log_path: file that its log lines, JSON, are appended to.
        fault: what the workers do at a point of their code, such as stop or die, in the form
            ``NAME:ACTION:WHEN`` of ``delayservice.base.faults``.
        environment: further environment variables.
        program: arguments of Python, for another program than the service.
        wrapper: command that replaces itself by the service, such as ``ip netns exec NAME``.
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
        self._log = NodeLog(log_path, log_path.stat().st_size if log_path.exists() else 0)
        # Under the guard, so that the service ends with this process, even if that is killed.
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
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def events(self, *names: str) -> list[dict[str, Any]]:
        return self._log.lines(*names)

    def wait_serving(self, slices: int, timeout_s: float = START_TIMEOUT_S) -> None:
        self._wait(
            lambda: len({e["slice"] for e in self.events("took_over")}) >= slices,
            f"the service did not serve {slices} slices",
            timeout_s,
        )

    def wait_stopped(self, timeout_s: float = START_TIMEOUT_S) -> bool:
        # Stopped (SIGSTOP) as at a fault point.
        try:
            self._wait(
                lambda: any(_is(p, _is_stopped) for p in self.processes()),
                "no process stopped",
                timeout_s,
            )
        except ClusterError:
            return False
        return True

    def _wait(self, condition: Callable[[], bool], complaint: str, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise ClusterError(
                    f"{complaint} within {timeout_s:.0f} s "
                    f"(exit status {self._process.poll()}); its log ends:\n{self.log_tail()}"
                )
            time.sleep(0.02)

    def log_tail(self) -> str:
        return tail(self._log_path)

    def processes(self) -> list[psutil.Process]:
        try:
            top = psutil.Process(self.pid)
            return [top, *top.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def workers(self) -> list[psutil.Process]:
        return [p for p in self.processes()[1:] if _is(p, is_worker)]

    def freeze(self) -> None:
        os.killpg(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        tree = self.processes()
        for process in tree:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self._process.wait(STOP_TIMEOUT_S)
        # A zombie counts as dead: a worker without a parent may be reaped seconds later.
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        while any(_is(process, _is_alive) for process in tree) and time.monotonic() < deadline_s:
            time.sleep(0.005)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        self._process.terminate()
        return self._process.wait(timeout_s)


def _is(process: psutil.Process, holds: Callable[[psutil.Process], bool]) -> bool:
    try:
        return holds(process)
    except psutil.NoSuchProcess:
        return False


def _is_alive(process: psutil.Process) -> bool:
    return bool(process.status() != psutil.STATUS_ZOMBIE)


def _is_stopped(process: psutil.Process) -> bool:
    return bool(process.status() == psutil.STATUS_STOPPED)


def is_worker(process: psutil.Process) -> bool:
    # A worker is a fork of the fork server.
    parent = process.parent()
    return parent is not None and "multiprocessing.forkserver" in " ".join(parent.cmdline())
