"""The role of a node for a slice: what it may do."""

from __future__ import annotations

from enum import Enum


class Role(Enum):
    """The role that a node has at a moment; see ``ha.ownership``."""

    REPLICA = "replica"
    """Store, and settle nothing."""
    HEIR = "heir"
    """A replica that should hurry: the slice is about to become this node's."""
    PAUSED = "paused"
    """Owner still, but the ensemble is out of sight: begin no new transaction."""
    OWNER = "owner"
    """Settle. Kafka's fencing decides in the end: a wrong yes costs a take-over, no duplicate."""

    @property
    def keeps_owning(self) -> bool:
        """Return whether an owner stays one."""
        return self in {Role.OWNER, Role.PAUSED}
