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
    """Return how full the disk of ``folder`` is, in percent. Like ``df``, leave out the space that
    is reserved for root.

    Raises:
        OSError: the disk can't be read.
    """
    usage = shutil.disk_usage(folder)
    return 100 * usage.used / max(usage.used + usage.free, 1)


class DiskWatch:
    """Watch of how full the stores' disk is. One thread calls ``look``, because the disk may hang;
    others read the results.

    Args:
        marks: limits, in percent: from which the disk counts as filling up, storing stops, or the
            disk is full.
        look: returns how full the disk is, in percent; raises ``OSError`` if that fails.
        monotonic_s: monotonic clock, in s.

    Attributes:
        level: how full the disk was at the last measurement: room, warning, storing stopped, or
            full.
        used: used percent of the disk at the last measurement.
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
        self.level = DiskLevel.ROOM
        self.used = 0.0

    def look(self) -> None:
        """Measure how full the disk is, once; set ``used`` and ``level``, and log a change of the
        level. If the disk can't be read, log that, and change nothing.
        """
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
        """Return for how long the measurement under way has lasted, in s; 0: there is none."""
        since_s = self._looking_since_s
        return 0.0 if since_s is None else self._monotonic_s() - since_s

    @property
    def alarm(self) -> str:
        """Return why storing has stopped, one sentence for people; empty: it has not."""
        if self.level < DiskLevel.STOP:
            return ""
        return (
            f"the disk of the stores is {self.used:.0f} % full, so nothing more is stored; what is "
            "stored is delivered"
        )
