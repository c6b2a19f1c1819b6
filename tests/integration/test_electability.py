"""A node that can't serve says so and lets go, whatever the reason: real servers and processes."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.servers import free_ports
from delay_devtools.service import PROGRAM, ServiceProcess
from tests.faults.wallclock import WallClock, clock_missing
from tests.integration.asked import metrics_of, probed
from tests.integration.bench import Bench, await_true

START_S = 40.0
"""A process needs a while to start on a busy machine."""


def is_ready(node: ServiceProcess) -> bool:
    return probed(node, "/readyz")[0] == 200


def await_unready(node: ServiceProcess, *words: str, timeout_s: float = START_S) -> None:
    """Until ``/readyz`` and ``/status`` refuse with these words."""
    seen: list[object] = []

    def is_said() -> bool:
        status, body = probed(node, "/readyz")
        seen[:] = [status, body]
        return status == 503 and all(word in body["detail"] for word in words)

    try:
        await_true(is_said, f"not ready: {words}", timeout_s)
    except AssertionError as exc:
        raise AssertionError(f"{exc}; the last answer was {seen}") from None
    _, state = probed(node, "/v1/node")
    assert not state["healthy"]
    assert all(any(word in problem for problem in state["problems"]) for word in words)


def unelectable(node: ServiceProcess) -> str:
    return "\n".join(metrics_of(node, "delay_unelectable{"))


class Nodes:
    """Nodes of one cluster of the service."""

    def __init__(self, cluster: EmbeddedCluster, folder: Path) -> None:
        self.folder = folder
        self.zookeeper = cluster.zookeeper
        self.root = f"/{uuid.uuid4().hex}"
        self.bench = Bench(
            cluster.bootstrap,
            folder,
            sets=[
                f"zookeeper.hosts={cluster.zookeeper}",
                f"zookeeper.root={self.root}",
                "zookeeper.session_timeout_s=4",
                "node.workers=1",
            ],
        )
        self._others: list[ServiceProcess] = []

    def start(
        self,
        name: str,
        *sets: str,
        state: str = "",
        fault: str = "",
        environment: dict[str, str] | None = None,
        program: Sequence[str] = PROGRAM,
    ) -> ServiceProcess:
        """A node, not awaited."""
        folder = f"node.state_dir={self.folder / (state or name)}"
        settings = self.bench.settings(f"node.node_id={name}", folder, *sets)
        log = self.folder / f"{state or name}.log"
        node = ServiceProcess(settings, log, fault=fault, environment=environment, program=program)
        self._others.append(node)
        return node

    def ready(self, name: str, *sets: str, **more: Any) -> ServiceProcess:
        """A node that could take over."""
        node = self.start(name, *sets, **more)
        await_true(lambda: is_ready(node), f"{name} is ready", START_S)
        return node

    def deliver(self, count: int = 3, timeout_s: float = 30) -> None:
        """Write records that are due at once, and wait for their delivery."""
        target = self.bench.target(f"t{uuid.uuid4().hex[:6]}")
        for number in range(count):
            self.bench.send_later(self.bench.to(target, 0), value=b"%d" % number)
        assert self.bench.producer.flush(30) == 0
        seen = self.bench.read(target, count, timeout_s=timeout_s)
        assert sorted(one.value or b"" for one in seen) == [b"%d" % n for n in range(count)]

    def close(self) -> None:
        """Leave nothing behind."""
        for node in self._others:
            node.kill()


@pytest.fixture
def nodes(cluster: EmbeddedCluster, tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(cluster, tmp_path)
    with made.bench:
        yield made
        made.close()


# --- what it needs is not there ------------------------------------------------------------------


def test_a_node_that_waits_for_kafka_listens_and_says_what_it_waits_for(nodes: Nodes) -> None:
    (port,) = free_ports(1)
    node = nodes.start("a", f"kafka.bootstrap=127.0.0.1:{port}")
    await_unready(node, "Kafka can't be reached")
    assert probed(node, "/healthz")[0] == 200, "it lives: a restart would mend nothing"
    assert 'reason="kafka_unreachable"' in unelectable(node)
    assert node.stop() == 0


NO_ZOOKEEPER = "zookeeper.hosts=127.0.0.1:{port}"
WRONG = ("zookeeper.auth=digest", "zookeeper.username=delay", "zookeeper.password=wrong-0123456789")
RIGHT = (*WRONG[:2], "zookeeper.password=right-0123456789")


def test_a_node_that_does_not_reach_zookeeper_is_not_ready_though_it_stores(nodes: Nodes) -> None:
    (port,) = free_ports(1)
    node = nodes.start("a", NO_ZOOKEEPER.format(port=port))
    await_unready(node, "ZooKeeper can't be used")
    assert 'slice="all"' in unelectable(node)
    assert 'reason="zookeeper_unusable"' in unelectable(node)


def test_a_node_with_a_wrong_password_is_not_ready_and_an_update_stops_at_it(nodes: Nodes) -> None:
    right = nodes.ready("a", *RIGHT)
    wrong = nodes.start("b", *WRONG)
    await_unready(wrong, "ZooKeeper can't be used", "check zookeeper.auth")
    assert is_ready(right)
    nodes.deliver()


def test_a_node_whose_name_is_taken_is_not_ready_and_says_by_whom(nodes: Nodes) -> None:
    nodes.ready("a")
    twin = nodes.start("a", state="twin")
    await_unready(twin, "node_id a is in use by another node")
    assert twin.events("took_over") == []


def test_a_node_for_which_kafka_opens_no_transactional_producer_is_not_ready(
    tmp_path: Path,
) -> None:
    shorter = {"transaction.max.timeout.ms": "30000"}  # than the service asks for
    with (
        EmbeddedCluster(zookeepers=0, broker_properties=shorter) as own,
        Bench(own.bootstrap, tmp_path) as bench,
    ):
        node = bench.start()
        await_unready(node, "Kafka opens no transactional producer")
        assert 'reason="writer_refused"' in unelectable(node)
        assert node.stop() == 0


# --- what it has does not work -------------------------------------------------------------------


def test_a_slice_whose_owner_hangs_is_delivered_by_another_node_within_seconds(
    nodes: Nodes,
) -> None:
    trap = nodes.folder / "trap"
    hung = nodes.ready("a", fault=f"after_poll:hang:{trap}")
    hung.wait_serving(1)
    other = nodes.ready("b", "node.broker_id=999")
    assert other.events("took_over") == []
    nodes.deliver()
    trap.touch()
    await_true(lambda: not trap.exists(), "it hangs")
    nodes.deliver()
    assert len(other.events("took_over")) == 1
    await_unready(hung, "the loop's turn has lasted", timeout_s=5)
    await_true(lambda: is_ready(hung), "it takes part again", 60)
    nodes.deliver()  # what it had begun is fenced


def test_a_lone_node_that_hangs_keeps_its_slices_and_goes_on(nodes: Nodes) -> None:
    trap = nodes.folder / "trap"
    alone = nodes.ready("a", fault=f"after_poll:hang:{trap}")
    alone.wait_serving(1)
    trap.touch()
    await_unready(alone, "the loop's turn has lasted")
    nodes.deliver(timeout_s=90)
    assert len(alone.events("took_over")) == 1
    assert alone.events("resigned") == []


def test_a_worker_that_is_stopped_is_ended_by_its_supervisor_and_another_begins(
    nodes: Nodes,
) -> None:
    node = nodes.ready("a")
    node.wait_serving(1)
    (worker,) = node.workers()
    worker.send_signal(signal.SIGSTOP)
    await_unready(node, "the worker is silent")
    await_true(lambda: node.events("worker_silent"), "the supervisor ends it")
    await_true(lambda: is_ready(node), "its successor serves", 60)
    assert worker.pid not in {process.pid for process in node.workers()}
    nodes.deliver()


SOON_ENDED = """
from delayservice.process import node
from delayservice.__main__ import main

node.HUNG_S_MAX = 2.0

if __name__ == "__main__":
    main()
"""
"""A node that waits for a hung loop no longer than a test can."""


def test_a_worker_whose_loop_hangs_is_replaced_by_its_supervisor(
    nodes: Nodes,
) -> None:
    trap, program = nodes.folder / "trap", nodes.folder / "soon_ended.py"
    program.write_text(SOON_ENDED, "utf-8")
    node = nodes.ready("a", fault=f"after_poll:stick:{trap}", program=[str(program)])
    node.wait_serving(1)
    (worker,) = node.workers()
    trap.touch()
    await_true(lambda: node.events("worker_hung"), "the supervisor ends it")
    await_true(lambda: is_ready(node), "its successor serves", 60)
    assert worker.pid not in {process.pid for process in node.workers()}
    nodes.deliver()


# --- a wrong clock -------------------------------------------------------------------------------


def broker_of(bench: Bench) -> int:
    """The broker that leads the delay topic: the node beside it is preferred."""
    topics = bench.admin.list_topics(bench.any, timeout=10).topics
    leader = topics[bench.any].partitions[0].leader
    assert isinstance(leader, int)
    return leader


@pytest.mark.skipif(bool(clock_missing()), reason=clock_missing() or "-")
def test_a_node_with_a_wrong_clock_does_not_take_its_preferred_slices(
    nodes: Nodes, tmp_path: Path
) -> None:
    first = nodes.ready("a", "node.broker_id=999")
    first.wait_serving(1)
    clock = WallClock(tmp_path / "clock", offset_s=20.0)
    preferred = nodes.start(
        "b", f"node.broker_id={broker_of(nodes.bench)}", environment=clock.environment
    )
    await_unready(preferred, "ahead of the broker's clock")
    nodes.deliver()
    assert preferred.events("took_over") == []
    assert first.events("resigned") == []
    clock.set(0.0)
    await_true(lambda: is_ready(preferred), "its clock is right", 30)
    preferred.wait_serving(1)
    nodes.deliver()
