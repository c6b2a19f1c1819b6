"""Role of a node for a slice, which decides what the node may do with it."""

from __future__ import annotations

from enum import Enum


class Role(Enum):
    """Role of a node for a slice at one moment, as ``ha.ownership`` computes it."""

    REPLICA = "replica"
    """The node stores the records of the slice, and does not deliver them."""
    HEIR = "heir"
    """The node is a replica that is about to become the owner; it opens its transactional producer
    ahead."""
    PAUSED = "paused"
    """The node is still the owner, but can't reach ZooKeeper: it begins no new transaction."""
    OWNER = "owner"
    """The node delivers the records of the slice. A former owner is fenced by Kafka."""

    @property
    def keeps_owning(self) -> bool:
        """Return whether an owner that gets this role is still the owner."""
        return self in {Role.OWNER, Role.PAUSED}
