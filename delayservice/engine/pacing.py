"""Interval between commits: short when idle, long under load. Pure; time is an input."""

from __future__ import annotations

_COMMITS_OF_TIME = 1.5
"""Interval between the starts of two commits, as a multiple of the mean duration of a commit."""
_SMOOTHING = 0.2


class Pacer:
    """Interval between the starts of two transactions of a worker.

    A transaction costs a few milliseconds of waiting and broker work, however many records it
    holds. So under load each should hold more; when idle, the first due record should not wait. The
    interval follows the measured duration of commits, between ``interval_ms_min`` and
    ``interval_ms_max``, milliseconds.
    """

    def __init__(self, interval_ms_min: float, interval_ms_max: float) -> None:
        self._min_ms = interval_ms_min
        self._max_ms = max(interval_ms_max, interval_ms_min)
        self._commit_ms = 0.0

    @property
    def interval_ms(self) -> float:
        """Return the shortest time between the starts of two transactions, milliseconds."""
        return min(max(_COMMITS_OF_TIME * self._commit_ms, self._min_ms), self._max_ms)

    def observe(self, commit_ms: float) -> None:
        """Add the duration of a commit, milliseconds, to the moving average."""
        self._commit_ms += _SMOOTHING * (commit_ms - self._commit_ms)
