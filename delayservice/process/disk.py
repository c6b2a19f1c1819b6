"""Watch of the disk of the stores: how full it is, and whether storing must stop."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from delayservice.engine.disk import DiskLevel, Watermarks

_log = structlog.get_logger(__name__)


def used_percent(folder: Path) -> float:
    # Like ``df``, this leaves out the space that is reserved for root.
    usage = shutil.disk_usage(folder)
    return 100 * usage.used / max(usage.used + usage.free, 1)


class DiskWatch:
    """Watch of how full the stores' disk is. One thread calls ``look``, because the disk may hang;
    others read the results.
    """

    def __init__(
        self,
        marks: Watermarks,
        look: Callable[[], float],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._marks = marks
        self._look = look
        self._monotonic_s = monotonic_s
        self._looking_since_s: float | None = None
        # How full the disk was at the last measurement: room, warning, storing stopped, or full.
        self.level = DiskLevel.ROOM
        # Used percent of the disk at the last measurement.
        self.used = 0.0

    def look(self) -> None:
        # If the disk can't be read, that is logged, and nothing changes.
        self._looking_since_s = self._monotonic_s()
        try:
            self.used = self._look()
        except OSError as exc:
            _log.warning("disk_not_seen", why=str(exc))
            return
        finally:
            self._looking_since_s = None
        before, self.level = self.level, self._marks.level(self.level, self.used)
        self._log_change(before)

    def _log_change(self, before: DiskLevel) -> None:
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
    def waiting_s(self) -> float:
        since_s = self._looking_since_s
        return 0.0 if since_s is None else self._monotonic_s() - since_s

    @property
    def alarm(self) -> str:
        if self.level < DiskLevel.STOP:
            return ""
        return (
            f"the disk of the stores is {self.used:.0f} % full, so nothing more is stored; what is "
            "stored is delivered"
        )
