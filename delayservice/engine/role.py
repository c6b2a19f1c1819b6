"""Role of a node for a slice, which decides what the node may do with it."""

from __future__ import annotations

from enum import Enum


class Role(Enum):
    """Role of a node for a slice, as ``ha.ownership`` computes it."""

    # Stores the records of the slice, and does not deliver them.
    REPLICA = "replica"
    # A replica that is about to own the slice; it opens its transactional producer ahead.
    HEIR = "heir"
    # Still the owner, but ZooKeeper can't be reached: it begins no new transaction.
    PAUSED = "paused"
    # Delivers the records of the slice. A former owner is fenced by Kafka.
    OWNER = "owner"

    @property
    def keeps_owning(self) -> bool:
        return self in {Role.OWNER, Role.PAUSED}
