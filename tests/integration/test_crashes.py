"""A worker is killed: others take its slices over at once, and keep them for a while."""

from __future__ import annotations

import signal
import time
from datetime import datetime
from typing import Any, Final

import pytest

from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.nodes import LocalNode, NodeGroup
from tests.integration.bench import Bench, benches
from tests.integration.nodes import two_nodes

pytestmark = [pytest.mark.cluster, pytest.mark.quick]

SESSION_S: Final = 60
TAKEN_S_MAX: Final = 20.0
"""Enough for a busy machine, and far from the session timeout."""
KEPT_S: Final = 12
CALM_S: Final = 6.0
"""Longer than an owner waits before it hands over to a better one, if there was no crash."""

bench = benches(partitions=2)


def seconds(event: dict[str, Any]) -> float:
    """When an event was logged, in epoch seconds."""
    return datetime.fromisoformat(event["timestamp"]).timestamp()


def kill_worker_of(group: NodeGroup) -> tuple[LocalNode, LocalNode, float, float]:
    """Kill an owner's worker until the other node has taken its slices over. The first time, the
    worker that replaces it may be faster; after two crashes the other node is preferred. Return the
    node, the other one, and when the worker was killed and the other had taken over, in epoch
    seconds.
    """
    victim = group.owner(0)
    (successor,) = (node for node in group.nodes.values() if node is not victim)
    for _ in range(3):
        before = group.owned_by(victim)
        (worker,) = victim.service.workers()
        killed_s = time.time()
        worker.send_signal(signal.SIGKILL)
        group.await_successors(before, [])
        if set(before) <= group.owned_by(successor).keys():
            break
    assert set(before) <= group.owned_by(successor).keys()
    taken_s = min(group.owners()[n].from_ms for n in before) / 1_000
    return victim, successor, killed_s, taken_s


def test_a_killed_workers_slices_are_taken_over_long_before_its_session_would_end(
    cluster: EmbeddedCluster, bench: Bench
) -> None:
    with two_nodes(bench, cluster.zookeeper, f"zookeeper.session_timeout_s={SESSION_S}") as group:
        group.start()
        victim, successor, _, taken_s = kill_worker_of(group)
    died = victim.service.events("worker_died")[-1]
    ended = victim.service.events("worker_session_ended")[-1]
    assert seconds(died) <= seconds(ended) <= taken_s < seconds(died) + TAKEN_S_MAX
    (connected,) = successor.service.events("zookeeper_connected")
    assert connected["session_timeout_s"] == SESSION_S


def test_slices_of_a_killed_worker_are_not_handed_back_as_soon_as_it_is_replaced(
    cluster: EmbeddedCluster, bench: Bench
) -> None:
    with two_nodes(bench, cluster.zookeeper, f"placement.leader_stable_s={KEPT_S}") as group:
        group.start()
        group.await_calm(CALM_S)
        _, successor, killed_s, taken_s = kill_worker_of(group)
        group.await_home()
    handing = [seconds(event) for event in successor.service.events("handing_over")]
    assert min(one_s for one_s in handing if one_s > taken_s) > killed_s + KEPT_S
