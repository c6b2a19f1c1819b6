"""The work that a node still does when its disk fills up. Pure.

Delivery never stops for it: what is due is read, and pruning gives room back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class DiskLevel(IntEnum):
    """Fill levels of the disk; each includes the ones below."""

    ROOM = 0
    WARN = 1
    """The node reports it."""
    STOP = 2
    """Nothing more is stored; what is not stored is in Kafka."""
    FULL = 3
    """Nor is written what need not be: syncs wait."""


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Percent of the disk at which the levels begin, ascending, and how far below one it must be to
    be left again.
    """

    warn: float
    stop: float
    full: float
    resume_below: float

    def level(self, before: DiskLevel, used: float) -> DiskLevel:
        """Return the level when ``used`` percent are used, after ``before``."""
        begins = {
            DiskLevel.WARN: self.warn,
            DiskLevel.STOP: self.stop,
            DiskLevel.FULL: self.full,
        }
        held = (n for n, at in begins.items() if n <= before and used > at - self.resume_below)
        reached = (n for n, at in begins.items() if used >= at)
        return max((*held, *reached), default=DiskLevel.ROOM)
