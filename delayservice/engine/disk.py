"""Fill levels of a node's disk, which limit what it writes. Pure.

Delivery goes on at every level: due records are read, and pruning frees space.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class DiskLevel(IntEnum):
    """Fill levels of the disk, ascending; the limits of lower ones apply at higher ones too."""

    ROOM = 0
    WARN = 1
    # No more records are stored; they stay in Kafka.
    STOP = 2
    # Writes that can wait stop too, such as syncs.
    FULL = 3


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Used percent of the disk at which each level starts, ascending. A level ends
    ``resume_below`` percentage points below its start.
    """

    warn: float
    stop: float
    full: float
    resume_below: float

    def level(self, before: DiskLevel, used: float) -> DiskLevel:
        begins = {
            DiskLevel.WARN: self.warn,
            DiskLevel.STOP: self.stop,
            DiskLevel.FULL: self.full,
        }
        held = (n for n, at in begins.items() if n <= before and used > at - self.resume_below)
        reached = (n for n, at in begins.items() if used >= at)
        return max((*held, *reached), default=DiskLevel.ROOM)
