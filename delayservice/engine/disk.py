"""Fill levels of a node's disk, which limit what it writes. Pure.

Delivery goes on at every level: due records are read, and pruning frees space.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class DiskLevel(IntEnum):
    """Fill levels of the disk, ascending; the limits of lower levels apply at higher ones too."""

    ROOM = 0
    WARN = 1
    """The node logs a warning."""
    STOP = 2
    """No more records are stored; they stay in Kafka."""
    FULL = 3
    """Writes that can wait stop too, such as syncs."""


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Used parts of the disk, percent, at which the levels of ``DiskLevel`` start, ascending. A
    level ends when the used part is ``resume_below`` percentage points below its start.
    """

    warn: float
    stop: float
    full: float
    resume_below: float

    def level(self, before: DiskLevel, used: float) -> DiskLevel:
        """Return the level at ``used`` percent of the disk, if ``before`` was the level until
        now.
        """
        begins = {
            DiskLevel.WARN: self.warn,
            DiskLevel.STOP: self.stop,
            DiskLevel.FULL: self.full,
        }
        held = (n for n, at in begins.items() if n <= before and used > at - self.resume_below)
        reached = (n for n, at in begins.items() if used >= at)
        return max((*held, *reached), default=DiskLevel.ROOM)
