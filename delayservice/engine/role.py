"""The role of a node for a slice, which decides what it may do."""

from __future__ import annotations

from enum import Enum


class Role(Enum):
    """Role of a node for a slice at a moment (``ha.ownership``)."""

    REPLICA = "replica"
    """The node stores, and does not settle."""
    HEIR = "heir"
    """The node is a replica that is about to become the owner; it opens its writer ahead."""
    PAUSED = "paused"
    """The node is still the owner, but without the ensemble: it begins no new transaction."""
    OWNER = "owner"
    """The node settles. A wrong owner is fenced by Kafka: it costs a take-over, no duplicate."""

    @property
    def keeps_owning(self) -> bool:
        """Return whether a node that owns the slice remains its owner."""
        return self in {Role.OWNER, Role.PAUSED}
