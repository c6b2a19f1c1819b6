"""A real Spark standalone cluster: one master, two workers, and jobs submitted to it.

Everything listens on 127.0.0.1 only. When the tests end, however they end, the processes and files
are gone (``delay_devtools.child``).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import psutil
import pyspark

from connectors.spark.common import session
from delay_devtools.child import Child, remover
from delay_devtools.servers import LOOPBACK, free_ports

SPARK_HOME: Final = Path(pyspark.__file__).parent
JOB: Final = Path(__file__).parents[2] / "delayservice" / "commands" / "spark_job.py"
EXECUTOR_MEMORY: Final = "512m"

_EXECUTOR: Final = "CoarseGrainedExecutorBackend"
_WORKERS: Final = 2
_WORKER_MEMORY: Final = "640m"


class StandaloneCluster:
    """A master and two workers with one core each, in a folder of their own."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="delay-spark-"))
        self._remover = remover(self._folder)
        self._children: list[Child] = []
        ports = free_ports(2 + _WORKERS)
        self._port, self._page_port, *self._worker_pages = ports

    @property
    def master(self) -> str:
        """Its address, as ``--master`` takes it."""
        return f"spark://{LOOPBACK}:{self._port}"

    def __enter__(self) -> Self:
        """Start, and wait until both workers have registered."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, whatever happened."""
        self.stop()

    def stop(self) -> None:
        """Workers first; nothing is kept."""
        for child in reversed(self._children):
            child.end(kill=True)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._remover.kill()
        self._remover.wait()

    def submit(
        self, *arguments: str, conf: Mapping[str, str] | None = None, timeout_s: float = 240
    ) -> subprocess.CompletedProcess[str]:
        """``spark-submit`` the job with these arguments and wait for its end."""
        settings = {"spark.ui.enabled": "false", "spark.cores.max": "2", **(conf or {})}
        command = [
            str(SPARK_HOME / "bin" / "spark-submit"),
            *("--master", self.master),
            *("--packages", ",".join(session.PACKAGES)),
            *("--driver-memory", "512m", "--executor-memory", EXECUTOR_MEMORY),
            *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
            str(JOB),
            *arguments,
        ]
        return subprocess.run(
            command,
            env=_environment(),
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def executors(self) -> int:
        """How many executors the applications that have ended had."""
        return sum(
            path.is_dir() and path.name.isdigit()
            for application in self._folder.glob("worker-*/app-*")
            for path in application.iterdir()
        )

    def lose_executors(self) -> int:
        """Kill all executors that run; how many there were. The master starts others."""
        lost = 0
        for child in self._children:
            for one in psutil.Process(child.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                    if any(_EXECUTOR in word for word in one.cmdline()):
                        one.kill()
                        lost += 1
        return lost

    def _start(self) -> None:
        at_master = ("--host", LOOPBACK, "--port", str(self._port))
        pages = ("--webui-port", str(self._page_port))
        self._launch("master", "org.apache.spark.deploy.master.Master", (*at_master, *pages))
        self._children[0].wait_until(lambda: self._workers() is not None)
        for number, port in enumerate(self._worker_pages):
            folder = self._folder / f"worker-{number}"
            room = ("--cores", "1", "--memory", _WORKER_MEMORY, "--work-dir", str(folder))
            place = ("--host", LOOPBACK, "--webui-port", str(port), self.master)
            self._launch(
                f"worker {number}", "org.apache.spark.deploy.worker.Worker", (*room, *place)
            )
        for child in self._children:
            child.wait_until(lambda: self._workers() == _WORKERS)

    def _launch(self, name: str, main: str, arguments: Sequence[str]) -> None:
        command = [str(SPARK_HOME / "bin" / "spark-class"), main, *arguments]
        path = self._folder / f"{name.replace(' ', '-')}.log"
        self._children.append(Child(name, command, path, _environment()))

    def _workers(self) -> int | None:
        """How many have registered; None while the master does not answer."""
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{self._page_port}/json/") as answer:
                return int(json.load(answer)["aliveworkers"])
        except OSError:
            return None


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "SPARK_HOME": str(SPARK_HOME),
        "JAVA_HOME": str(session.java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_DAEMON_MEMORY": "192m",
    }
