"""A process tree of the service: started, watched, killed."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import psutil

from delay_devtools.child import START_S, STOP_S, Child
from delayservice.base import faults
from delayservice.base.errors import ClusterError


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


PROGRAM: Final = ("-m", "delayservice")
"""Arguments of Python that start the service."""


class ServiceProcess(Child):
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
        self._log = NodeLog(log_path, log_path.stat().st_size if log_path.exists() else 0)
        command = [*wrapper, sys.executable, *program, "run"]
        for setting in [*sets, "log.format=json"]:
            command += ["--set", setting]
        env = {**os.environ, **(environment or {})}
        env.pop(faults.VARIABLE, None)
        if fault:
            env[faults.VARIABLE] = fault
        super().__init__("the service", command, log_path, env)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def events(self, *names: str) -> list[dict[str, Any]]:
        return self._log.lines(*names)

    def wait_serving(self, slices: int, timeout_s: float = START_S) -> None:
        self.wait_until(
            lambda: len({e["slice"] for e in self.events("took_over")}) >= slices,
            timeout_s,
            f"the owner of {slices} slices",
        )

    def wait_stopped(self, timeout_s: float = START_S) -> bool:
        # Stopped (SIGSTOP) as at a fault point.
        try:
            self.wait_until(
                lambda: any(_is(p, _is_stopped) for p in self.processes()), timeout_s, "stopped"
            )
        except ClusterError:
            return False
        return True

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
        self._process.wait(STOP_S)
        # A zombie counts as dead: a worker without a parent may be reaped seconds later.
        deadline_s = time.monotonic() + STOP_S
        while any(_is(process, _is_alive) for process in tree) and time.monotonic() < deadline_s:
            time.sleep(0.005)

    def stop(self, timeout_s: float = STOP_S) -> int:
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
