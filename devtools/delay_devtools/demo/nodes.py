"""The settings of the demo's nodes: those of docker-compose.yml, but for what a test lists."""

from __future__ import annotations

from typing import Final

from delay_devtools.crew import sets_of_several
from delay_devtools.demo.choices import Choices
from delay_devtools.ports import ANY_PORTS

SLICES: Final = 4
SESSION_S: Final = 2
"""Of ZooKeeper: how long a dead node goes unnoticed. Short, to keep the demo short."""


def sets_of(choices: Choices, bootstrap: str, zookeeper: str) -> dict[str, list[str]]:
    """Settings by node: n1 beside broker 1, and so on; without name and folder, which are its own.

    Args:
        choices: how many, and what they do.
        bootstrap: brokers.
        zookeeper: ``host:port,…`` of the ensemble, if there are several.
    """
    sets = [
        f"kafka.bootstrap={bootstrap}",
        f"topics.partitions={SLICES}",
        f"delivery.id_partitions={SLICES}",
        f"node.store={choices.store}",
        f"delivery.mode={choices.delivery}",
        "targets.default.allow=demo_*",
        *ANY_PORTS,
    ]
    if not choices.has_several:
        return {"n1": sets}
    sets += sets_of_several(zookeeper, "/demo")
    # All nodes share this machine: a second worker each would only take from the others.
    sets += [f"zookeeper.session_timeout_s={SESSION_S}", "node.workers=1"]
    return {
        f"n{number}": [*sets, f"node.broker_id={number}"] for number in range(1, choices.nodes + 1)
    }
