"""What a node may do with a slice."""

from __future__ import annotations

from enum import Enum


class Role(Enum):
    """As answered at any moment; see ``ha.ownership``."""

    REPLICA = "replica"
    """Store, and settle nothing."""
    HEIR = "heir"
    """As a replica, and be quick: the slice is about to become this node's."""
    PAUSED = "paused"
    """Owner still, but the ensemble is out of sight: begin no new transaction."""
    OWNER = "owner"
    """Settle. Kafka's fencing decides in the end: a wrong yes costs a take-over, no duplicate."""

    @property
    def keeps_owning(self) -> bool:
        """Return whether an owner stays one."""
        return self in {Role.OWNER, Role.PAUSED}
