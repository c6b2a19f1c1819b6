"""``make demo`` runs the nodes of ``docker-compose.yml``, but for the settings listed below."""

from __future__ import annotations

import re
from pathlib import Path

from delay_devtools.demo.options import DemoOptions
from delay_devtools.demo.story import SLICES, sets_of
from delay_devtools.servers import Broker
from delayservice.config.reference import effective
from delayservice.config.settings import Settings, load_with_origins
from tests.deployed import nodes, property_of, services

OTHERWISE = {
    "kafka.bootstrap": "addresses of this machine",
    "zookeeper.hosts": "addresses of this machine",
    "zookeeper.root": "the benchmarks meet in the same ensemble",
    "metrics.listen": "any free port, for the nodes share an address",
    "admin.listen": "any free port, for the nodes share an address",
    "zookeeper.session_timeout_s": "a dead node is noticed soon, to keep the demo short",
    "placement.leader_stable_s": "slices come home soon after a crash, as above",
    "node.workers": "three nodes share the cores that one node has",
    "targets.default.allow": "its own topics",
    "node.cluster_secret": "one for all runs, for nothing else is signed with it",
    "node.cluster_secret_file": "as above",
    "zookeeper.password": "as above",
    "zookeeper.password_file": "as above",
    "admin.token_file": "each node makes a token for the minute that it lives",
    "node.node_id": "given to each process beside these settings",
    "node.state_dir": "as above",
}
"""What differs, and why."""


def settings_of(sets: list[str], environment: dict[str, str]) -> dict[str, object]:
    return {row.name: row.value for row in effective(load_with_origins(None, sets, environment))}


def test_the_demo_and_the_compose_file_differ_in_what_is_listed_and_nothing_else() -> None:
    composed = [settings_of([], node.environment) for node in nodes()]
    options = DemoOptions(nodes=len(composed))
    demo = [settings_of(sets, {}) for sets in sets_of(options, "b:1", "z:1").values()]
    differ = {
        name
        for one, other in zip(demo, composed, strict=True)
        for name in one.keys() | other.keys()
        if one.get(name) != other.get(name)
    }
    assert differ - OTHERWISE.keys() == set()
    # node.workers is how many cores there are, which may be one.
    assert OTHERWISE.keys() - differ <= {"node.workers", "node.node_id", "node.state_dir"}


def test_the_demo_and_the_compose_file_have_as_many_slices() -> None:
    assert Settings().topics.partitions == SLICES
    assert not any("TOPICS__PARTITIONS" in name for n in nodes() for name in n.environment)


def test_the_demo_and_the_compose_file_keep_as_many_copies() -> None:
    composed = [one for one in services().values() if "KAFKA_NODE_ID" in one.environment]
    plans = [Broker(n, "b", (1, 2, 3), Path()) for n in range(1, len(composed) + 1)]
    own = re.compile(r"node\.id|log\.dirs|.*listener.*|controller\.quorum\.voters")
    for plan, one in zip(plans, composed, strict=True):
        demo = plan.settings(plans)
        file = {
            property_of(name): value
            for name, value in one.environment.items()
            if name.startswith("KAFKA_") and not own.fullmatch(property_of(name))
        }
        assert len(file) > 8
        assert {name: demo.get(name) for name in file} == file
