from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from delay_devtools.nodes import sets_of_several
from delay_devtools.servers import ANY_PORTS

SLICES: Final = 4
# Session timeout of ZooKeeper, in s, short for a demo: time until a dead node is noticed.
SESSION_S: Final = 2


@dataclass(frozen=True, slots=True)
class Choices:
    """Options of one demo; one node alone runs without ZooKeeper."""

    records: int
    kills: int | None
    nodes: int
    store: str
    delivery: str

    @property
    def has_several(self) -> bool:
        return self.nodes > 1


def sets_of(choices: Choices, bootstrap: str, zookeeper: str) -> dict[str, list[str]]:
    """Return the settings of each node, by node name: n1 is beside broker 1, and so on.

    They equal those of docker-compose.yml, except for the differences that a test lists.
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
