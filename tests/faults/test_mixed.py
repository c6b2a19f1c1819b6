"""One fault after another, chosen by the seed, for as many minutes as ``--fault-minutes`` says.

Each fault is a context manager that yields the nodes which are of no use meanwhile: ``/readyz`` of
each has to say so, or not answer.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from connectors.spark.audit import AuditOptions, AuditResult, audit
from connectors.spark.common.session import open_session
from delay_devtools.servers import LOOPBACK
from tests.faults.conftest import MINUTES, Scenario
from tests.faults.disk import SmallDisk, disk_missing
from tests.faults.kafka_proxy import KafkaProxy, ProxiedCluster
from tests.faults.leaders import elect_preferred
from tests.faults.network import Namespace, Network
from tests.faults.node import Node, Place
from tests.faults.stage import SECRET, Script, Stage
from tests.faults.test_machines import DISK_MIB
from tests.faults.test_network import ports
from tests.faults.wallclock import WallClock, clock_missing

Useless: TypeAlias = Iterator[list[Node]]

pytestmark = [pytest.mark.fault, pytest.mark.night, pytest.mark.timeout(0)]
"""Each wait has a limit of its own."""

UNREADY_S: Final = 10.0
"""Slower than each cause of ``docs/cluster.md`` but a silent worker, which no fault here makes."""
BACK_S: Final = 120.0
PER_S: Final = 100
OFF_S: Final = 0.4
"""Within ``delivery.clock_tolerance_ms``, the most by which a record may then be early."""
TOLERANCE_MS: Final = 500
STEP_S: Final = 5.0
VICTIM_DELAY_MS: Final = 60_000
GRACE_MS: Final = 45_000


@pytest.fixture
def fault_cluster(network: Network | None) -> Iterator[ProxiedCluster]:
    """Brokers that one of the nodes reaches through a proxy."""
    with ProxiedCluster(brokers=3, host=network.address if network else LOOPBACK) as running:
        yield running


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults. Node 1 is in a network of its own with a small disk, node 2 behind the proxy,
    nodes 2 and 3 have clocks of their own.
    """

    stage: Stage
    away: Namespace
    disk: SmallDisk
    clocks: dict[int, WallClock]
    proxy: KafkaProxy
    unready_s: list[float] = field(default_factory=list)
    """How long after each fault the nodes said that they were of no use."""

    def all(self) -> dict[str, Callable[[], AbstractContextManager[list[Node]]]]:
        return {
            "node killed": partial(self.node_harmed, Node.kill, Node.start),
            "node frozen": partial(self.node_harmed, Node.freeze, Node.thaw),
            "worker killed": self.worker_killed,
            "cut off from Kafka": partial(self.cut_off, "kafka"),
            "cut off from ZooKeeper": partial(self.cut_off, "zookeeper"),
            "cut off from both": partial(self.cut_off, "kafka", "zookeeper"),
            "disk full": self.disk_full,
            "clock stepped": partial(self.clock_off, STEP_S),
            "clock off": partial(self.clock_off, OFF_S),
            "late end of a transaction": self.late_end,
            "broker killed": self.broker_killed,
            "ZooKeeper down": self.zookeeper_down,
        }

    @contextmanager
    def node_harmed(self, harm: Callable[[Node], None], mend: Callable[[Node], None]) -> Useless:
        victim = self.stage.any_owner()
        harm(victim)
        yield [victim]
        mend(victim)

    @contextmanager
    def worker_killed(self) -> Useless:
        self.stage.any_owner().signal_worker(signal.SIGKILL)
        yield []  # it is replaced at once

    @contextmanager
    def cut_off(self, *parts: str) -> Useless:
        self.away.cut(*ports(self.stage, *parts))
        yield [self.stage.nodes[0]]
        self.away.heal()

    @contextmanager
    def disk_full(self) -> Useless:
        node = self.stage.nodes[0]
        self.disk.fill()
        # It delivers what it has, and is not ready once its copies are too far behind.
        self.stage.await_true(lambda: not node.is_ready(), "it says that it lags behind")
        yield []
        self.disk.free()

    @contextmanager
    def clock_off(self, off_s: float) -> Useless:
        number = self.stage.random.choice(list(self.clocks))
        self.clocks[number].set(self.stage.random.choice((off_s, -off_s)))
        yield [self.stage.nodes[number - 1]] if off_s * 1_000 > TOLERANCE_MS else []
        self.clocks[number].set(0.0)

    @contextmanager
    def late_end(self) -> Useless:
        self.stage.await_true(self.stage.nodes[1].serves, "the node behind the proxy owns slices")
        self.proxy.hold_next(commit=True)
        self.stage.await_true(lambda: self.proxy.holds, "an end is held")
        yield []
        self.proxy.let_go()

    @contextmanager
    def broker_killed(self) -> Useless:
        with self.stage.broker_down(
            self.stage.random.choice(self.stage.cluster.broker_ids), kill=True
        ):
            yield []
        elect_preferred(self.stage.admin, self.stage.delay_topic)  # each node owns slices again

    @contextmanager
    def zookeeper_down(self) -> Useless:
        with self.stage.zookeeper_down(kill=True):
            yield self.stage.nodes

    def play(self, name: str) -> dict[str, object]:
        """Cause a fault, measure how soon the nodes say so, and wait until all is well again."""
        stage, begun_s = self.stage, time.monotonic()
        line: dict[str, object] = {"fault": name}
        with self.all()[name]() as useless:
            fault_s = time.monotonic()
            for node in useless:
                stage.await_true(lambda: not node.is_ready(), f"{node.node_id} is not ready")  # noqa: B023
            if useless:
                self.unready_s.append(round(time.monotonic() - fault_s, 1))
                line["unready_s"] = self.unready_s[-1]
            stage.await_written(stage.random.randrange(1, 8) * PER_S)
        stage.await_served(BACK_S)
        stage.await_true(lambda: all(node.is_ready() for node in stage.nodes), "all ready", BACK_S)
        stage.await_delivered(2 * PER_S)
        return line | {"seconds": round(time.monotonic() - begun_s, 1)}


def audited(stage: Stage, folder: Path) -> AuditResult:
    options = AuditOptions(
        client={"bootstrap.servers": stage.cluster.bootstrap},
        out=str(folder / "audit"),
        checkpoint=stage.checkpoint,
        dead_letter=stage.dead_letter,
        outcomes=stage.outcomes,
        allow=(f"to_{stage.run}_*",),
        secrets=(SECRET.encode(),),
        early_ms=TOLERANCE_MS,
        lag_ms=GRACE_MS,
    )
    spark = open_session("mixed", master="local[2]", conf={"spark.sql.shuffle.partitions": "4"})
    try:
        return audit(spark, options)
    finally:
        spark.stop()


def test_records_of_every_kind_have_one_outcome_whatever_fault_comes_after_another(
    scenario: Scenario, fault_cluster: ProxiedCluster, away: Namespace, tmp_path: Path
) -> None:
    if reason := disk_missing() or clock_missing():
        pytest.skip(reason)
    disk = SmallDisk(tmp_path / "disk", DISK_MIB)
    clocks = {number: WallClock(tmp_path / f"clock-{number}") for number in (2, 3)}
    small = ("wheel.buffer_bytes_max=64KiB", "wheel.sync_bytes=64KiB")
    proxied = f"kafka.bootstrap={fault_cluster.proxied}"
    places = {
        1: Place(away.wrapper, state_dir=disk.folder / "state", sets=("node.store=wheel", *small)),
        2: Place(environment=clocks[2].environment, sets=("node.store=rocksdb", proxied)),
        3: Place(environment=clocks[3].environment, sets=("node.store=wheel",)),
    }
    script = Script(
        places=places,
        per_s=PER_S,
        named=0.2,
        victim_delay_ms=VICTIM_DELAY_MS,
        grace_ms=GRACE_MS,
        early_ms=TOLERANCE_MS,
        settle_s=180,
    )
    minutes = scenario.request.config.getoption("--fault-minutes", MINUTES)
    ends_s = time.monotonic() + minutes * 60
    playing = scenario.play(script, nodes_min=3)
    with disk, KafkaProxy(fault_cluster) as proxy, playing as stage:
        faults = Faults(stage, away, disk, clocks, proxy)
        left: list[str] = []
        while time.monotonic() < ends_s:
            left = left or stage.random.sample(list(faults.all()), len(faults.all()))
            scenario.say(faults.play(left.pop()))
        stage.settle()
        stage.watch.read_to_end()  # past what transactions left open, which an audit does not judge
        result = audited(stage, tmp_path)
        unready_s_max = max(faults.unready_s, default=0.0)
        found = {"audit": dict(result.findings), "unjudged": dict(result.unjudged)}
        scenario.say({**found, "unready_s_max": unready_s_max})
        acknowledged = len(stage.history.acked)
    assert found == {"audit": {}, "unjudged": {}}
    assert result.records >= acknowledged
    assert unready_s_max <= UNREADY_S
