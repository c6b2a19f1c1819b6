"""Estimates from measurements: a worker's interval between commits, short when idle and long under
load, and the growth of a log. Pure; time is an input.
"""

from __future__ import annotations

from collections import deque
from typing import Final

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


# A new contract starts as far above the log's end as the log grows in this time. Every replica must
# read the checkpoint with it before it reads records under it: a commit and a fetch, about 10 ms, a
# second or two on a busy cluster.
AHEAD_MS: Final = 5_000

# A dozen kept offsets then cover ``AHEAD_MS``.
_STEP_MS: Final = 500


class Growth:
    """Append times of about a dozen recent offsets of one log."""

    def __init__(self) -> None:
        self._marks: deque[tuple[int, int]] = deque(maxlen=AHEAD_MS // _STEP_MS + 2)
        self._last: tuple[int, int] | None = None

    def note(self, offset: int, appended_ms: int) -> None:
        self._last = (appended_ms, offset)
        if not self._marks or appended_ms >= self._marks[-1][0] + _STEP_MS:
            self._marks.append(self._last)

    def offsets_ahead(self, end: int, now_ms: int) -> int:
        """Return as many offsets as were appended in the last ``AHEAD_MS``. If no record of that
        time was read, growth since the last one is taken as even.
        """
        if self._last is None:
            return 0
        lately = (mark for mark in self._marks if mark[0] >= now_ms - AHEAD_MS)
        appended_ms, offset = next(lately, self._last)
        return max(end - offset, 0) * AHEAD_MS // max(now_ms - appended_ms, AHEAD_MS)
