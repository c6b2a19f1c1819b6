"""A Docker Engine of this run alone: its own storage, network namespace and processes.

The programs are those of Debian's packages, unpacked and not installed, so no service is started.
An engine that builds uses the network of the machine and has no bridge; an engine that runs
containers has a network namespace of its own, where published ports collide with nothing.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, Self

from tests.deployed import ROOT

START_S: Final = 60.0
STOP_S: Final = 60.0
RUN: Final = "/run/containers"
"""State of Podman, in a mount namespace of the engine."""
_PACKAGES: Final = ("docker.io", "containerd", "tini")
_HTTP: Final = """
import base64, sys, time, urllib.request, urllib.error
url, wait_s, secret = sys.argv[1], float(sys.argv[2]), sys.argv[3]
headers = {"Host": "localhost"}
if secret:
    headers["Authorization"] = "Basic " + base64.b64encode(f"any:{secret}".encode()).decode()
until = time.time() + wait_s
while True:
    try:
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=5) as answer:
            body = answer.read().decode()
            break
    except (OSError, urllib.error.URLError) as exc:
        if time.time() > until:
            sys.exit(f"{url}: {exc}")
        time.sleep(0.05)
print(time.time())
print(body)
"""


class EngineError(Exception):
    """A program of the engine failed."""


def unpacked(folder: Path) -> Path:
    """Return the folder with Docker's programs, from Debian's packages."""
    if not (folder / "usr/sbin/dockerd").exists():
        fetched = folder / "packages"
        fetched.mkdir(parents=True, exist_ok=True)
        run(["apt-get", "download", "-qq", *_PACKAGES], cwd=fetched)
        for package in fetched.glob("*.deb"):
            run(["dpkg", "-x", str(package), str(folder)])
    return folder


def run(
    words: list[str],
    *,
    env: dict[str, str] | None = None,
    cwd: Path = ROOT,
    timeout_s: float = 900,
    is_checked: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a program and return what it printed.

    Raises:
        EngineError: it failed, and ``is_checked``.
    """
    done = subprocess.run(
        words, check=False, env=env, cwd=cwd, timeout=timeout_s, capture_output=True, text=True
    )
    if is_checked and done.returncode:
        raise EngineError(f"{' '.join(words[:12])}: {(done.stdout + done.stderr)[-3000:]}")
    return done


class Engine:
    """Docker Engine, from start to stop.

    Args:
        tools: folder of the unpacked programs.
        folder: of images, volumes and sockets; the same for a building and a running engine.
        is_isolated: whether it has a network namespace of its own, to run containers.
    """

    def __init__(self, tools: Path, folder: Path, *, is_isolated: bool) -> None:
        self._folder = folder
        self._is_isolated = is_isolated
        path = f"{tools / 'usr/bin'}:{tools / 'usr/sbin'}:{os.environ['PATH']}"
        self.env = {
            **os.environ,
            "PATH": path,
            "DOCKER_HOST": f"unix://{folder / 'socket'}",
            "DOCKER_BUILDKIT": "0",
            "DOCKER_CONFIG": str(folder / "config"),
            "COMPOSE_PROJECT_NAME": "delay",
            "COMPOSE_HTTP_TIMEOUT": "300",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start it, and wait until it answers."""
        self._folder.mkdir(parents=True, exist_ok=True)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        files = 20_000 if hard < 0 else min(hard, 20_000)
        words = ["dockerd", "--data-root", "data", "--exec-root", "run", "--pidfile", "pid"]
        words = [str(self._folder / w) if w in {"data", "run", "pid"} else w for w in words]
        words += ["--host", self.env["DOCKER_HOST"], "--storage-driver", "overlay2"]
        words += ["--default-ulimit", f"nofile={files}:{files}"]
        if self._is_isolated:
            # Podman's DNS server keeps its state there: one that an interrupted run has left behind
            # would be taken for this run's.
            script = f'ip link set lo up; mkdir -p {RUN}; mount -t tmpfs tmpfs {RUN}; exec "$@"'
            words = ["unshare", "--net", "--mount", "sh", "-c", script, "-", *words]
        else:
            words = ["unshare", "--mount", *words, "--bridge=none", "--iptables=false"]
            words += ["--ip-forward=false", "--ip-masq=false"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                words, env=self.env, stdout=log, stderr=log, start_new_session=True
            )
        until_s = time.monotonic() + START_S
        while self.docker("version", is_checked=False).returncode:
            if time.monotonic() > until_s or self._process.poll() is not None:
                self.__exit__()
                raise EngineError(f"Docker did not start: {self._log()}")
            time.sleep(0.2)
        return self

    def __exit__(self, *_: object) -> None:
        """Remove every container, and stop."""
        if self._process is None:
            return
        if self._process.poll() is None:
            found = self.docker("ps", "-aq", is_checked=False).stdout.split()
            if found:
                self.docker("rm", "-fv", *found, is_checked=False)
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process = None

    def _log(self) -> str:
        return (self._folder / "log").read_text("utf-8", "replace")[-2000:]

    @property
    def pid(self) -> int:
        """The process of the engine."""
        assert self._process is not None
        return self._process.pid

    def docker(
        self, *words: str, is_checked: bool = True, timeout_s: float = 900
    ) -> subprocess.CompletedProcess[str]:
        """Run ``docker``."""
        return run(["docker", *words], env=self.env, is_checked=is_checked, timeout_s=timeout_s)

    def compose(
        self, *words: str, is_checked: bool = True, timeout_s: float = 600
    ) -> subprocess.CompletedProcess[str]:
        """Run ``docker-compose`` on the file of this repository, or on those named by ``-f``."""
        return run(
            ["docker-compose", *words], env=self.env, is_checked=is_checked, timeout_s=timeout_s
        )

    def get(self, url: str, wait_s: float = 0.0, secret: str = "") -> tuple[float, str]:
        """Ask a published port, again until ``wait_s`` have gone; return when it answered.

        Raises:
            EngineError: no answer with status 200.
        """
        inside = ["nsenter", f"--net=/proc/{self.pid}/ns/net"]
        done = run(
            [*inside, sys.executable, "-c", _HTTP, url, str(wait_s), secret], timeout_s=wait_s + 30
        )
        at_s, _, body = done.stdout.partition("\n")
        return float(at_s), body

    def inspect(self, name: str, what: str) -> str:
        """Return one fact of a container or an image, by a template of Go."""
        kept = what if what.startswith("{{") else f"{{{{{what}}}}}"
        return self.docker("inspect", "--format", kept, name).stdout.strip()


def removed(folder: Path) -> None:
    """Remove a folder of an engine; what is still mounted below it is unmounted first."""
    for line in reversed(Path("/proc/mounts").read_text("utf-8").splitlines()):
        place = line.split()[1]
        if place.startswith(f"{folder}/"):
            run(["umount", "-l", place], is_checked=False)
    shutil.rmtree(folder, ignore_errors=True)
