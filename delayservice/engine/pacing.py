"""Interval between commits: short when idle, long under load. Pure; time is an input."""

from __future__ import annotations

# Interval as a multiple of a commit's mean duration.
_COMMITS_OF_TIME = 1.5
_SMOOTHING = 0.2


class Pacer:
    """Interval between the starts of two transactions of a worker.

    A transaction costs a few milliseconds, however many records it holds. So under load each should
    hold more; when idle, the first due record should not wait. The interval follows the duration of
    commits.
    """

    def __init__(self, interval_ms_min: float, interval_ms_max: float) -> None:
        self._min_ms = interval_ms_min
        self._max_ms = max(interval_ms_max, interval_ms_min)
        self._commit_ms = 0.0

    @property
    def interval_ms(self) -> float:
        return min(max(_COMMITS_OF_TIME * self._commit_ms, self._min_ms), self._max_ms)

    def observe(self, commit_ms: float) -> None:
        self._commit_ms += _SMOOTHING * (commit_ms - self._commit_ms)
