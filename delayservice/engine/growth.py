"""Estimate of a log's growth, from the append times of records that were read. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

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
