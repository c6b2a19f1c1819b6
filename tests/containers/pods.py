"""The Kubernetes example as pods of podman, which takes the same manifests.

This shows that the containers start with the configuration, users and volumes of the manifest. It
does not show rights: podman ignores ``fsGroup`` and the modes of secrets.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import time
from pathlib import Path
from typing import Final

from tests.containers import kube
from tests.containers.engine import Engine, run
from tests.containers.images import SERVICE
from tests.containers.report import Report
from tests.deployed import ROOT

_ZOOKEEPER: Final = "zookeeper:3.9.3"
_IMAGES: Final = ("apache/kafka:4.3.0", _ZOOKEEPER, SERVICE)
_MANIFEST: Final = ROOT / "deploy/kubernetes/delayservice.yaml"
_READY_S: Final = 120.0
_CONF: Final = """
[containers]
default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


class Podman:
    """Podman with a storage of its own, in the network namespace of the engine."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self._engine = engine
        folder.mkdir(parents=True)
        conf = folder / "containers.conf"
        files = min(20_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        processes = min(4_096, resource.getrlimit(resource.RLIMIT_NPROC)[1])
        conf.write_text(_CONF.format(files=max(files, 1_024), processes=max(processes, 1_024)))
        self._env = {**os.environ, "CONTAINERS_CONF": str(conf)}
        self._words = ["podman", "--root", str(folder / "root"), "--runroot", str(folder / "run")]
        self._words += ["--network-config-dir", str(folder / "networks")]
        self._words = ["nsenter", f"--net=/proc/{engine.pid}/ns/net", *self._words]

    def __call__(
        self, *words: str, is_checked: bool = True, timeout_s: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Run ``podman``."""
        return run(
            [*self._words, *words], env=self._env, is_checked=is_checked, timeout_s=timeout_s
        )

    def load(self, archive: Path) -> None:
        """Take over the images that the engine built."""
        self._engine.docker("save", "--output", str(archive), *_IMAGES)
        self("load", "--quiet", "--input", str(archive))
        archive.unlink()

    def get(self, container: str, path: str) -> str:
        """Ask the API of a node, from inside its pod; empty: no answer with status 200."""
        script = (
            "import urllib.request as u;"
            f"r=u.Request('http://127.0.0.1:9465{path}',headers={{'Host':'localhost'}});"
            "print(u.urlopen(r,timeout=5).status)"
        )
        python = "/opt/delayservice/bin/python"
        return self("exec", container, python, "-c", script, is_checked=False).stdout.strip()


def check(engine: Engine, report: Report, scratch: Path) -> None:
    """Start the three pods, deliver, ask the probes' paths, and stop them."""
    podman = Podman(engine, scratch / "podman")
    report.say("starting the Kubernetes pods by podman")
    podman.load(scratch / "images.tar")
    pods = kube.write(_MANIFEST, scratch / "kube")
    try:
        podman("network", "create", "kubenet")
        podman("secret", "create", "delayservice", str(scratch / "kube/secret.yaml"))
        alias = ("--network", "kubenet", "--network-alias", "zookeeper")
        podman("run", "-d", "--name", "zk", *alias, f"docker.io/library/{_ZOOKEEPER}")
        for pod in pods:
            network = f"kubenet:alias={pod}.kafka,alias={pod}"
            podman("kube", "play", "--network", network, str(scratch / f"kube/{pod}.yaml"))
        _deliver(podman, report, pods)
        for pod in pods:
            node = f"{pod}-delayservice"
            podman("stop", "-t", "40", node)
            code = podman("inspect", "--format", "{{.State.ExitCode}}", node).stdout.strip()
            report.check(f"pod {pod}: its node ends with 0 when stopped", code == "0", code)
    finally:
        for words in (("pod", "rm", "-fa"), ("rm", "-fa"), ("network", "rm", "-f", "kubenet")):
            podman(*words, is_checked=False)


def _deliver(podman: Podman, report: Report, pods: list[str]) -> None:
    bootstrap = ",".join(f"{pod}.kafka:9092" for pod in pods)
    words = [
        "run",
        "--rm",
        "--network",
        "kubenet",
        "-e",
        f"DELAYSERVICE_KAFKA__BOOTSTRAP={bootstrap}",
    ]
    words += [f"docker.io/library/{SERVICE}", "smoke", "--records", "300", "--target", "orders"]
    done = podman(*words, is_checked=False)
    last = done.stdout.splitlines()[-1] if done.stdout else ""
    verdict = json.loads(last) if last.startswith("{") else {}
    is_good = done.returncode == 0 and verdict.get("delivered") == 300
    report.check("pods deliver 300 of 300 records", is_good, done.stdout + done.stderr)
    for pod in pods:
        node = f"{pod}-delayservice"
        for path in ("/healthz", "/readyz"):
            until_s = time.monotonic() + _READY_S
            while (found := podman.get(node, path)) != "200" and time.monotonic() < until_s:
                time.sleep(1)
            report.check(f"pod {pod}: {path} answers 200", found == "200", found)
        user = podman("exec", node, "id", "-u", is_checked=False).stdout.strip()
        report.check(f"pod {pod}: the node runs as 10001", user == "10001", user)
