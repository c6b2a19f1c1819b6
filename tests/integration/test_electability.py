"""A node that can't serve says so and lets go, whatever the reason: real servers and processes."""

from __future__ import annotations

import signal
from pathlib import Path

from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.servers import free_ports
from delay_devtools.service import ServiceProcess
from tests.faults.wallclock import WallClock, clock_missing
from tests.integration.asked import probed
from tests.integration.bench import Bench, await_true
from tests.integration.nodes import READY_S, Nodes, is_ready, metrics_text, nodes_with
from tests.needs import missing


def await_unready(node: ServiceProcess, *words: str, timeout_s: float = READY_S) -> None:
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


nodes = nodes_with()


# --- what it needs is not there ------------------------------------------------------------------


def test_a_node_that_waits_for_kafka_listens_and_says_what_it_waits_for(nodes: Nodes) -> None:
    (port,) = free_ports(1)
    node = nodes.start("a", f"kafka.bootstrap=127.0.0.1:{port}")
    await_unready(node, "Kafka can't be reached")
    assert probed(node, "/healthz")[0] == 200, "it lives: a restart would mend nothing"
    assert 'reason="kafka_unreachable"' in metrics_text(node, "delay_unelectable{")
    assert node.stop() == 0


NO_ZOOKEEPER = "zookeeper.hosts=127.0.0.1:{port}"
WRONG = ("zookeeper.auth=digest", "zookeeper.username=delay", "zookeeper.password=wrong-0123456789")
RIGHT = (*WRONG[:2], "zookeeper.password=right-0123456789")


def test_a_node_that_does_not_reach_zookeeper_is_not_ready_though_it_stores(nodes: Nodes) -> None:
    (port,) = free_ports(1)
    node = nodes.start("a", NO_ZOOKEEPER.format(port=port))
    await_unready(node, "ZooKeeper can't be used")
    assert 'slice="all"' in metrics_text(node, "delay_unelectable{")
    assert 'reason="zookeeper_unusable"' in metrics_text(node, "delay_unelectable{")


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
        assert 'reason="writer_refused"' in metrics_text(node, "delay_unelectable{")
        assert node.stop() == 0


# --- what it has does not work -------------------------------------------------------------------


def test_a_slice_whose_owner_hangs_is_delivered_by_another_node_within_seconds(
    nodes: Nodes,
) -> None:
    trap = nodes.bench.folder / "trap"
    hung = nodes.ready("a", fault=f"after_poll:hang:{trap}")
    hung.wait_serving(1)
    other = nodes.ready("b", "node.broker_id=999")
    assert other.events("took_over") == []
    nodes.deliver()
    trap.touch()
    await_true(lambda: not trap.exists(), "it hangs")
    await_unready(hung, "the loop's turn has lasted")
    nodes.deliver()
    assert len(other.events("took_over")) == 1
    assert "ingest.py" in hung.events("worker_not_electable")[-1]["stack"]
    await_true(lambda: is_ready(hung), "it takes part again", 60)
    nodes.deliver()  # what it had begun is fenced


def test_a_lone_node_that_hangs_keeps_its_slices_and_goes_on(nodes: Nodes) -> None:
    trap = nodes.bench.folder / "trap"
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


def test_a_worker_whose_loop_hangs_is_replaced_by_its_supervisor(nodes: Nodes) -> None:
    trap, program = nodes.bench.folder / "trap", nodes.bench.folder / "soon_ended.py"
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


def test_a_node_with_a_wrong_clock_does_not_take_its_preferred_slices(
    nodes: Nodes, tmp_path: Path
) -> None:
    if reason := clock_missing():
        missing(reason)
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
