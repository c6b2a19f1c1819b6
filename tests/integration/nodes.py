"""Nodes of one cluster of the service, which elect the owners of its slices."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from delay_devtools.nodes import LocalNode, NodeGroup, sets_of_several
from delay_devtools.service import ServiceProcess
from tests.integration.asked import metrics_of, probed
from tests.integration.bench import Bench, await_true

READY_S = 60.0
"""A process needs a while to start on a busy machine."""


class Nodes:
    """Nodes on one bench; each has a state folder and a log, both by its name."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.running: dict[str, ServiceProcess] = {}

    def start(self, name: str, *sets: str, state: str = "", **how: Any) -> ServiceProcess:
        """Start a node, without waiting for it; ``state`` names its folder and log otherwise."""
        place = state or name
        folder = f"node.state_dir={self.bench.folder / place}"
        node = self.bench.start(f"node.node_id={name}", folder, *sets, log=f"{place}.log", **how)
        self.running[place] = node
        return node

    def ready(self, name: str, *sets: str, **how: Any) -> ServiceProcess:
        """Start a node, and wait until it could take over."""
        node = self.start(name, *sets, **how)
        await_true(lambda: is_ready(node), f"{name} is ready", READY_S)
        return node

    def restart(self, name: str, *sets: str) -> ServiceProcess:
        """Stop a node in good order and start it again, with other settings perhaps."""
        assert self.running[name].stop() == 0
        return self.ready(name, *sets)

    def deliver(self, count: int = 3, timeout_s: float = 30) -> None:
        """Write records that are due at once, and wait for their delivery."""
        target = self.bench.target(f"t{uuid.uuid4().hex[:6]}")
        for number in range(count):
            self.bench.send_later(self.bench.to(target, 0), value=b"%d" % number)
        assert self.bench.producer.flush(30) == 0
        self.bench.read(target, count, timeout_s)
        seen = self.bench.read_all(target)
        assert sorted(one.value or b"" for one in seen) == [b"%d" % n for n in range(count)]


def nodes_with(*, partitions: int = 1, sets: Sequence[str] = ()) -> Any:
    """Return the fixture ``nodes`` of a module."""

    @pytest.fixture(name="nodes")
    def made(cluster: Any, tmp_path: Any) -> Iterator[Nodes]:
        several = [
            f"zookeeper.hosts={cluster.zookeeper}",
            "zookeeper.root=/{run}",
            "zookeeper.session_timeout_s=4",
            "node.workers=1",
            *sets,
        ]
        with Bench(cluster.bootstrap, tmp_path, partitions=partitions, sets=several) as bench:
            yield Nodes(bench)

    return made


def two_nodes(bench: Bench, zookeeper: str, *sets: str) -> NodeGroup:
    """Return nodes whose logs tell which of them owns a slice; ``start`` starts them."""
    shared = [
        *bench.settings("node.workers=1", "zookeeper.session_timeout_s=4"),
        *sets_of_several(zookeeper, f"/{bench.run}"),
        *sets,
    ]
    return NodeGroup([LocalNode(name, shared, bench.folder) for name in "ab"], bench.partitions)


def is_ready(node: ServiceProcess) -> bool:
    return probed(node, "/readyz")[0] == 200


def unready_because(node: ServiceProcess) -> str:
    """Return why a node could not take over; empty before it listens."""
    return str(probed(node, "/readyz")[1].get("detail", ""))


def metrics_text(node: ServiceProcess, start: str) -> str:
    return "\n".join(metrics_of(node, start))
