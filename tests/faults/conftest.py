"""Fixtures of the fault suite: one cluster of three brokers for the session, a stage for each test.

``--fault-seed`` replays a history; ``--fault-nodes`` says how many nodes there are;
``--fault-keep`` leaves the logs of every scenario, not only of those that failed;
``--fault-minutes`` says how long the one with all faults takes.
"""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest

from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.servers import LOOPBACK
from tests.faults.checker import Verdict
from tests.faults.network import Namespace, Network, network_missing
from tests.faults.stage import Script, Stage

SEED: Final = secrets.randbits(32)
NODES: Final = 3
MINUTES: Final = 3.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this suite."""
    group = parser.getgroup("faults")
    text = "seed of histories and moments; default: a fresh one"
    group.addoption("--fault-seed", type=int, default=SEED, help=text)
    group.addoption("--fault-nodes", type=int, default=NODES, help="nodes of each scenario")
    text = "minutes of faults one after another; default: 3"
    group.addoption("--fault-minutes", type=float, default=MINUTES, help=text)
    group.addoption("--fault-keep", action="store_true", help="keep the logs of what went well")


@pytest.fixture(scope="session")
def network(request: pytest.FixtureRequest) -> Iterator[Network | None]:
    """Network that namespaces can join; None: no test needs one, or it can't be made here."""
    wanted = any("away" in getattr(item, "fixturenames", ()) for item in request.session.items)
    if not wanted or network_missing():
        yield None
        return
    with Network() as made:
        yield made


@pytest.fixture
def away(network: Network | None) -> Iterator[Namespace]:
    """Network namespace of a node, which can be cut off."""
    if network is None:
        pytest.skip(network_missing())
    with Namespace(network) as made:
        yield made


@pytest.fixture(scope="session")
def fault_cluster(network: Network | None) -> Iterator[EmbeddedCluster]:
    """Three brokers, three copies, two in sync; one ZooKeeper."""
    address = network.address if network else LOOPBACK
    with EmbeddedCluster(brokers=3, host=address) as running:
        yield running


@dataclass(frozen=True, slots=True)
class Scenario:
    """Starter of the scenarios of a test; see ``play``."""

    cluster: EmbeddedCluster
    folder: Path
    name: str
    seed: int
    nodes_max: int
    request: pytest.FixtureRequest

    @contextmanager
    def play(self, script: Script, *, nodes_min: int = 1) -> Iterator[Stage]:
        """Open the stage, let the test cause its faults, and judge the deliveries.

        Args:
            script: what is needed; its nodes are bounded by ``--fault-nodes``.
            nodes_min: with fewer nodes the test would say nothing, and is skipped.
        """
        if self.nodes_max < nodes_min:
            pytest.skip(f"needs {nodes_min} nodes, and --fault-nodes is {self.nodes_max}")
        script = replace(script, nodes=min(script.nodes, self.nodes_max))
        stage = Stage(self.cluster, self.folder, script, self.seed, self.name)
        begun_s = time.monotonic()
        try:
            stage.open()
            yield stage
            verdict = stage.judge()
            self._tell(stage, verdict, time.monotonic() - begun_s)
            self._assert_good(script, verdict)
        finally:
            stage.abandon()

    def say(self, line: Mapping[str, object]) -> None:
        """Print a line of JSON, whatever pytest captures."""
        manager = self.request.config.pluginmanager.getplugin("capturemanager")
        with manager.global_and_fixture_disabled():
            print(f"\n{json.dumps(line)}", flush=True)  # noqa: T201  # it is what is asked for

    def _tell(self, stage: Stage, verdict: Verdict, seconds: float) -> None:
        line: dict[str, object] = {
            "scenario": self.name,
            "seed": self.seed,
            "nodes": stage.script.nodes,
            "records": verdict.records,
            "lost": len(verdict.lost),
            "duplicated": verdict.copies_too_many,
            "early": len(verdict.early),
            "altered": len(verdict.altered),
            "other": sum(len(uids) for uids in verdict.others.values()),
            "overtaken": verdict.overtaken,
            "lateness_ms_p50": verdict.lateness(50),
            "lateness_ms_p99": verdict.lateness(99),
            "lateness_ms_max": verdict.lateness(100),
            "takeovers": stage.takeovers(),
            "seconds": round(seconds, 1),
        }
        if self.request.config.getoption("--fault-keep", default=False):
            line["logs"] = str(self.folder)
        self.say(line)

    def _assert_good(self, script: Script, verdict: Verdict) -> None:
        wrong = dict(verdict.wrong)
        if verdict.copies_too_many <= script.duplicates_max:
            wrong.pop("duplicated", None)
        assert not wrong, {kind: (len(uids), uids[:5]) for kind, uids in wrong.items()}

    def keep_server_logs(self) -> None:
        for log in self.cluster.folder.glob("*/server.log"):
            shutil.copy(log, self.folder / f"{log.parent.name}.log")


@pytest.fixture
def scenario(request: pytest.FixtureRequest, fault_cluster: EmbeddedCluster) -> Iterator[Scenario]:
    """The stage of one test."""
    option = request.config.getoption
    name = request.node.name.removeprefix("test_")
    seed, nodes = option("--fault-seed", SEED), option("--fault-nodes", NODES)
    # Not pytest's folder, which later runs sweep away: logs of a failure are kept until somebody
    # has looked at them.
    folder = Path(tempfile.mkdtemp(prefix="delay-faults-"))
    yield Scenario(fault_cluster, folder, name, seed, nodes, request)
    if folder.exists() and not any(folder.iterdir()):
        folder.rmdir()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the logs of a failed scenario, and report where they are and how to repeat it."""
    report = yield
    played = getattr(item, "funcargs", {}).get("scenario")
    if call.when != "call" or not isinstance(played, Scenario):
        return report
    if report.failed:
        played.keep_server_logs()
        again = f"make faults ARGS='-k {item.name.partition('[')[0]} --fault-seed={played.seed}'"
        report.sections.append(("replay", f"{again}\nlogs: {played.folder}"))
    elif not item.config.getoption("--fault-keep", default=False):
        shutil.rmtree(played.folder)
    return report
