"""Nodes of the last version and of this one share a cluster: slices change hands in both orders.

The last version had one transactional id for each slice and knows no claims. Its code is taken from
the repository's own history.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from delayservice.dev.cluster import EmbeddedCluster
from delayservice.dev.crew import SECRET
from delayservice.dev.service import ServiceProcess
from tests.integration.bench import await_true

pytestmark = pytest.mark.fault

LAST_VERSION = "ecac7eee013e4da02deb57ac3ffcfd9210791ac7"
ROOT = Path(__file__).parents[2]
SLICES = 4
SESSION_S = 4
RECORDS = 16_000
PER_S = 200


@pytest.fixture(scope="module")
def last_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the service of the last version."""
    folder = tmp_path_factory.mktemp("last")
    packed = subprocess.run(
        ["git", "archive", LAST_VERSION, "delayservice", "connectors", "ha"],  # noqa: S607  # by PATH
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder


class Nodes:
    """Two nodes, each of either version, over several lives."""

    def __init__(self, cluster: EmbeddedCluster, last_version: Path, folder: Path) -> None:
        self._cluster = cluster
        self.bootstrap = cluster.bootstrap
        self._last_version = last_version
        self._folder = folder
        self.running: dict[str, ServiceProcess] = {}

    def start(self, name: str, *, is_new: bool) -> ServiceProcess:
        """Begin a life; what ran under the name has ended."""
        old = str(self._last_version)
        service = ServiceProcess(
            [
                f"kafka.bootstrap={self._cluster.bootstrap}",
                f"zookeeper.hosts={self._cluster.zookeeper}",
                f"zookeeper.session_timeout_s={SESSION_S}",
                "node.workers=1",
                f"node.node_id={name}",
                f"node.state_dir={self._folder / name}",
                f"node.cluster_secret={SECRET}",
                "targets.default.allow=orders",
                "metrics.listen=127.0.0.1:0",
                "admin.listen=127.0.0.1:0",
            ],
            self._folder / f"{name}.log",
            wrapper=[] if is_new else ["env", "-C", old],
            environment={} if is_new else {"PYTHONPATH": old},
        )
        self.running[name] = service
        return service

    def close(self) -> None:
        """Leave nothing behind."""
        for service in self.running.values():
            service.kill()


@pytest.fixture
def nodes(last_version: Path, tmp_path: Path) -> Iterator[Nodes]:
    with ExitStack() as stack:
        cluster = stack.enter_context(EmbeddedCluster())
        running = Nodes(cluster, last_version, tmp_path)
        stack.callback(running.close)
        yield running


@pytest.mark.parametrize("seed", [1, 2])
def test_versions_take_slices_from_each_other_and_nothing_is_lost_or_doubled(
    nodes: Nodes, seed: int
) -> None:
    rng = Random(seed)
    first = nodes.start("a", is_new=False)
    first.wait_serving(SLICES)
    asked = f"-b {nodes.bootstrap} --records {RECORDS} --per-s {PER_S} --delay-ms-max 8000"
    load = subprocess.Popen(
        [sys.executable, "-m", "delayservice", "dev", "load", "--json", *asked.split()],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    nodes.start("b", is_new=False)
    pause = threading.Event()  # the schedule of the seed, not a wait for anything
    pause.wait(10)
    nodes.running["a"].stop()
    upgraded = nodes.start("a", is_new=True)
    for _ in range(6):
        pause.wait(rng.uniform(1, 8))
        name, service = rng.choice(sorted(nodes.running.items()))
        how = rng.choice(("kill", "kill", "freeze", "stop"))
        if how == "freeze":
            service.freeze()
            pause.wait(SESSION_S + 3)
            service.thaw()
            continue
        service.kill() if how == "kill" else service.stop()
        nodes.start(name, is_new=rng.random() < 0.6)
    for name in sorted(nodes.running):
        nodes.running[name].kill()
        upgraded = nodes.start(name, is_new=True)
    await_true(lambda: upgraded.events("took_over"), "the new version serves", 120)
    told, _ = load.communicate(timeout=300)
    verdict = json.loads(told.splitlines()[-1])
    assert verdict["sent"] == verdict["delivered"] == RECORDS
    assert (verdict["lost"], verdict["duplicated"], verdict["early"]) == (0, 0, 0)
