"""Who settles a slice. The rest of the service asks one question and never how it was answered."""

from __future__ import annotations

from typing import Protocol


class Ownership(Protocol):
    """Answers for every slice of this node, at any time, from any thread."""

    def may_own(self, slice_no: int) -> bool:
        """Whether this node is to settle the slice now. Kafka's fencing decides in the end: a wrong
        yes costs a take-over, never a duplicate.
        """


class Standalone:
    """One node owns every slice; no ZooKeeper."""

    def may_own(self, slice_no: int) -> bool:  # noqa: ARG002  # the answer is the same for all
        """Yes."""
        return True
