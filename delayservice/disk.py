"""Looks at the disk that the stores are on, and says what may still be written to it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import structlog

from delayservice.core.disk import DiskLevel, Watermarks

_log = structlog.get_logger(__name__)


def used_percent(folder: Path) -> float:
    """How much of the folder's disk is used, as ``df`` counts: what only root may use is no room.

    Raises:
        OSError: the folder can't be looked at.
    """
    usage = shutil.disk_usage(folder)
    return 100 * usage.used / max(usage.used + usage.free, 1)


class DiskWatch:
    """One for a worker; its thread looks, the threads of its slices ask for the level.

    Attributes:
        level: as of the last look.
        used: percent of the disk, as of then.
    """

    def __init__(self, marks: Watermarks, look: Callable[[], float]) -> None:
        self._marks = marks
        self._look = look
        self.level = DiskLevel.ROOM
        self.used = 0.0

    def look(self) -> None:
        """Look once."""
        try:
            self.used = self._look()
        except OSError as exc:
            _log.warning("disk_not_seen", why=str(exc))
            return
        before, self.level = self.level, self._marks.level(self.level, self.used)
        self._tell(before)

    def _tell(self, before: DiskLevel) -> None:
        if self.level == before:
            return
        used = round(self.used, 1)
        if self.level >= DiskLevel.STOP > before:
            _log.error("storing_stopped", used_percent=used, stop_percent=self._marks.stop)
        elif self.level < DiskLevel.STOP <= before:
            _log.info("storing_resumed", used_percent=used)
        if self.level == DiskLevel.WARN > before:
            _log.warning("disk_fills_up", used_percent=used, stop_percent=self._marks.stop)
        elif self.level == DiskLevel.FULL:
            _log.error("disk_full", used_percent=used)

    @property
    def alarm(self) -> str:
        """Why nothing is stored, one sentence; empty while all is well."""
        if self.level < DiskLevel.STOP:
            return ""
        return (
            f"the disk of the stores is {self.used:.0f} % full, so nothing more is stored; what is "
            "stored is delivered"
        )
