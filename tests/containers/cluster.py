"""The Compose file as a running cluster, and what is asked of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final, Self

from tests.containers.engine import Engine, EngineError
from tests.containers.report import Report

NODES: Final = {"delay-1": 9465, "delay-2": 9475, "delay-3": 9485}
"""Published port of the API of each node."""

HEALTHY_S: Final = 240.0
_LOOK_S: Final = 0.5


class Cluster:
    """The services of a Compose file on an engine.

    Args:
        engine: runs containers.
        report: takes the checks.
        file: the Compose file.
        metrics_ports: published ports of the nodes' metrics.
    """

    def __init__(
        self,
        engine: Engine,
        report: Report,
        file: Path,
        metrics_ports: tuple[int, ...] = (9464, 9474, 9484),
    ) -> None:
        self.engine = engine
        self.report = report
        self._file = ["-f", str(file)]
        self._metrics_ports = metrics_ports

    def __enter__(self) -> Self:
        """Nothing runs yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove containers, networks and volumes."""
        self.compose("--profile", "spark", "down", "-v", "-t", "5", is_checked=False)

    def compose(self, *words: str, is_checked: bool = True) -> subprocess.CompletedProcess[str]:
        """Run ``docker-compose``."""
        return self.engine.compose(*self._file, *words, is_checked=is_checked)

    def container(self, service: str) -> str:
        """Return the id of a service's container, running or not."""
        found = self.engine.docker(
            "ps", "-aq", "--filter", f"label=com.docker.compose.service={service}"
        ).stdout.split()
        if not found:
            raise EngineError(f"{service} has no container")
        return found[0]

    def fact(self, service: str, what: str) -> str:
        """Return one fact of a service's container."""
        return self.engine.inspect(self.container(service), what)

    def health(self, service: str) -> str:
        """Return what the engine's own check of a service says."""
        return self.fact(service, "{{if .State.Health}}{{.State.Health.Status}}{{end}}")

    def await_healthy(self, *services: str) -> float:
        """Wait for the engine's own checks of services; return the seconds that it took.

        Raises:
            EngineError: one is not healthy in time.
        """
        started_s = time.monotonic()
        while sick := {s: h for s in services if (h := self.health(s)) != "healthy"}:
            if time.monotonic() - started_s > HEALTHY_S:
                logs = [self.engine.docker("logs", "--tail", "15", self.container(s)) for s in sick]
                raise EngineError(f"{sick}: {[one.stdout + one.stderr for one in logs]}")
            time.sleep(_LOOK_S)
        return time.monotonic() - started_s

    def kill(self, service: str) -> float:
        """Kill a container's main process as a crash does; return the seconds until it runs."""
        pid = int(self.fact(service, ".State.Pid"))
        before = self.fact(service, ".RestartCount")
        started_s = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        while self.fact(service, ".RestartCount") == before or (
            self.fact(service, ".State.Running") != "true"
        ):
            if time.monotonic() - started_s > HEALTHY_S:
                raise EngineError(f"{service} was not started again")
            time.sleep(0.1)
        return time.monotonic() - started_s

    def await_ready(self, node: str) -> float:
        """Wait until a node is ready; return the seconds since its container's start."""
        at_s, _ = self.engine.get(f"http://127.0.0.1:{NODES[node]}/readyz", HEALTHY_S)
        return at_s - _epoch_s(self.fact(node, ".State.StartedAt"))

    def exit_code(self, service: str) -> int:
        """Return the exit status of a container that has ended."""
        return int(self.fact(service, ".State.ExitCode"))

    @contextmanager
    def load(self, what: str, records: int, per_s: float) -> Iterator[None]:
        """Send delayed records meanwhile, and check afterwards that each came once."""
        before = self._ingested()
        words = ["run", "--rm", "-T", "--no-deps", "load", "smoke", "--target", "orders"]
        words += ["--records", str(records), "--rate", str(per_s), "--delay-max", "20s", "--json"]
        process = subprocess.Popen(
            ["docker-compose", *self._file, *words],  # noqa: S607
            env=self.engine.env,
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            self._await_ingested(before, process)
            yield
            out, err = process.communicate(timeout=300)
        except BaseException:
            process.kill()
            process.wait()
            raise
        lines = out.splitlines()
        verdict = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
        self.report.check(
            f"{what}: {records} records came once each, none early",
            process.returncode == 0 and verdict.get("sent") == records,
            verdict or out + err,
        )

    def _await_ingested(self, before: float, load: subprocess.Popen[str]) -> None:
        """Wait until nodes have read records of a load, or the load has ended."""
        until_s = time.monotonic() + HEALTHY_S
        while load.poll() is None and self._ingested() <= before:
            if time.monotonic() > until_s:
                raise EngineError("no node read a record of the load")
            time.sleep(_LOOK_S)

    def _ingested(self) -> float:
        """Return how many records the nodes that answer have read since their starts."""
        return sum(
            float(line.rpartition(" ")[2])
            for port in self._metrics_ports
            for line in self.engine.get(f"http://127.0.0.1:{port}/metrics")[1].splitlines()
            if line.startswith("delay_ingested_total ")
        )


def _epoch_s(text: str) -> float:
    """Return a time of Docker, with nanoseconds and ``Z``, in seconds."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")
