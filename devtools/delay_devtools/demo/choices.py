"""What the demo is asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Choices:
    """One demo.

    Attributes:
        records: how many are sent.
        kills: times that a node is killed; None: what suits so many nodes.
        nodes: how many, each beside a broker; one alone runs without ZooKeeper.
        store: ``node.store``.
        delivery: ``delivery.mode``.
    """

    records: int
    kills: int | None
    nodes: int
    store: str
    delivery: str

    @property
    def has_several(self) -> bool:
        """Return whether there is anybody to take over."""
        return self.nodes > 1

    @property
    def is_exactly_once(self) -> bool:
        """Return whether the brokers refuse what a former owner wants to commit."""
        return self.delivery == "exactly_once"
