"""Options of a demo, and the settings of its nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from delay_devtools.nodes import sets_of_several
from delay_devtools.ports import ANY_PORTS

SLICES: Final = 4
SESSION_S: Final = 2
"""Session timeout of ZooKeeper, in s, short for a demo: time until a dead node is noticed."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Options of one demo.

    Attributes:
        records: number of records that are sent.
        kills: number of kills of a node; None: the default for this number of nodes.
        nodes: number of nodes, each beside a broker; one alone runs without ZooKeeper.
        store: setting ``node.store``.
        delivery: setting ``delivery.mode``.
    """

    records: int
    kills: int | None
    nodes: int
    store: str
    delivery: str

    @property
    def has_several(self) -> bool:
        """Return whether there are several nodes, of which one can take over from another."""
        return self.nodes > 1


def sets_of(choices: Choices, bootstrap: str, zookeeper: str) -> dict[str, list[str]]:
    """Return the ``section.key=value`` settings of each node, by node name: n1 is beside broker 1,
    n2 beside broker 2, and so on.

    They equal those of docker-compose.yml, except for the differences that a test lists; the node's
    name and state folder are not among them.

    Args:
        choices: number of nodes, store and delivery mode.
        bootstrap: ``host:port,…`` of the brokers.
        zookeeper: ``host:port,…`` of the ensemble; ignored for a single node.
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
    # All nodes share this machine: a second worker each would only slow the others.
    sets += [f"zookeeper.session_timeout_s={SESSION_S}", "node.workers=1"]
    return {
        f"n{number}": [*sets, f"node.broker_id={number}"] for number in range(1, choices.nodes + 1)
    }
