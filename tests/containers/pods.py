"""The Kubernetes manifests as pods of podman, which takes them almost as they are.

This shows that the containers start with the configuration, users and volumes of the manifest. It
does not show rights: podman ignores ``fsGroup`` and the modes of secrets.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.containers import kube
from tests.containers.engine import RUN, Engine, run
from tests.containers.images import SERVICE
from tests.containers.report import Report
from tests.deployed import ROOT

_ZOOKEEPER: Final = "zookeeper:3.9.3"
_IMAGES: Final = ("apache/kafka:4.3.0", _ZOOKEEPER, SERVICE)
_BESIDE: Final = ROOT / "deploy/kubernetes/delayservice.yaml"
_ELSEWHERE: Final = ROOT / "deploy/kubernetes/elsewhere.yaml"
_NETWORK: Final = "kubenet"
_BROKERS: Final = "kafka-0.kafka:9092,kafka-1.kafka:9092,kafka-2.kafka:9092"
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
    """Podman with a storage of its own, in the namespaces of the engine."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self._engine = engine
        folder.mkdir(parents=True)
        conf = folder / "containers.conf"
        files = min(20_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        processes = min(4_096, resource.getrlimit(resource.RLIMIT_NPROC)[1])
        conf.write_text(_CONF.format(files=max(files, 1_024), processes=max(processes, 1_024)))
        self._env = {**os.environ, "CONTAINERS_CONF": str(conf)}
        # Podman takes no run folder with a path of more than 50 characters.
        self._words = ["podman", "--root", str(folder / "root"), "--runroot", f"{RUN}/run"]
        self._words += ["--network-config-dir", str(folder / "networks")]
        self._words = ["nsenter", f"--target={engine.pid}", "--net", "--mount", *self._words]

    def __call__(
        self, *words: str, is_checked: bool = True, timeout_s: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Run ``podman``."""
        return run(
            [*self._words, *words], env=self._env, is_checked=is_checked, timeout_s=timeout_s
        )

    def load(self, archive: Path) -> None:
        """Take over the images that the engine built, under the names that Docker reads."""
        for image in _IMAGES:
            self._engine.docker("save", "--output", str(archive), image)
            loaded = self("load", "--quiet", "--input", str(archive)).stdout.split()[-1]
            self("tag", loaded, f"docker.io/{image if '/' in image else f'library/{image}'}")
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
    """Run nodes beside brokers, then nodes and ZooKeepers of the chart with brokers elsewhere."""
    podman = Podman(engine, scratch / "podman")
    podman.load(scratch / "images.tar")
    report.say("starting the pods of delayservice.yaml: brokers with their nodes")
    with _cleared(podman):
        alias = ("--network", _NETWORK, "--network-alias", "zookeeper")
        podman("run", "-d", "--name", "zk", *alias, f"docker.io/library/{_ZOOKEEPER}")
        pods = _play(podman, _BESIDE, scratch / "beside", "kafka")
        _deliver(podman, report, pods)
        _stop(podman, report, pods)
    report.say("starting the pods of elsewhere.yaml: three ZooKeepers, three nodes")
    with _cleared(podman):
        _play(podman, _BESIDE, scratch / "brokers", "kafka", without="delayservice")
        pods = _play(podman, _ELSEWHERE, scratch / "elsewhere", "delayservice-zookeeper")
        nodes = [pod for pod in pods if "zookeeper" not in pod]
        _deliver(podman, report, nodes)
        _stop(podman, report, nodes)


@contextmanager
def _cleared(podman: Podman) -> Iterator[None]:
    podman("network", "create", _NETWORK)
    try:
        yield
    finally:
        for words in (
            ("pod", "rm", "-fa"),
            ("rm", "-fa"),
            ("network", "rm", "-f", _NETWORK),
            ("volume", "rm", "-fa"),
            ("secret", "rm", "delayservice"),
        ):
            podman(*words, is_checked=False)


def _play(podman: Podman, manifest: Path, made: Path, domain: str, without: str = "") -> list[str]:
    """Start the Pods of a manifest, each under its name and under its name in ``domain``."""
    variables = {"DELAYSERVICE_KAFKA__BOOTSTRAP": _BROKERS}
    pods = kube.write(manifest, made, variables, without)
    if podman("secret", "inspect", "delayservice", is_checked=False).returncode:
        podman("secret", "create", "delayservice", str(made / "secret.yaml"))
    for pod in pods:
        network = f"{_NETWORK}:alias={pod}.{domain},alias={pod}"
        podman("kube", "play", "--network", network, str(made / f"{pod}.yaml"))
    return pods


def _stop(podman: Podman, report: Report, pods: list[str]) -> None:
    for pod in pods:
        node = f"{pod}-delayservice"
        podman("stop", "-t", "40", node)
        code = podman("inspect", "--format", "{{.State.ExitCode}}", node).stdout.strip()
        report.check(f"pod {pod}: its node ends with 0 when stopped", code == "0", code)


def _deliver(podman: Podman, report: Report, pods: list[str]) -> None:
    words = ["run", "--rm", "--network", _NETWORK]
    words += ["-e", f"DELAYSERVICE_KAFKA__BOOTSTRAP={_BROKERS}"]
    words += [f"docker.io/library/{SERVICE}", "smoke", "--records", "300", "--target", "orders"]
    words += ["--json"]
    done = podman(*words, is_checked=False)
    last = done.stdout.splitlines()[-1] if done.stdout else ""
    verdict = json.loads(last) if last.startswith("{") else {}
    is_good = done.returncode == 0 and verdict.get("sent") == 300
    report.check(
        f"{pods[0]} and the others deliver 300 of 300 records", is_good, done.stdout + done.stderr
    )
    for pod in pods:
        node = f"{pod}-delayservice"
        for path in ("/healthz", "/readyz"):
            until_s = time.monotonic() + _READY_S
            while (found := podman.get(node, path)) != "200" and time.monotonic() < until_s:
                time.sleep(1)
            report.check(f"pod {pod}: {path} answers 200", found == "200", found)
        user = podman("exec", node, "id", "-u", is_checked=False).stdout.strip()
        report.check(f"pod {pod}: the node runs as 10001", user == "10001", user)
