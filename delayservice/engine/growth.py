"""Estimate of a log's growth, from the append times of records that were read. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

AHEAD_MS: Final = 5_000
"""Time, ms, in which the log reaches the first offset of a new contract at its recent growth: a new
contract starts so far above the end of the log.

Every replica must read the checkpoint with the contract before it reads records under it. That
takes a commit and a fetch: about 10 ms, and a second or two on a busy cluster."""

_STEP_MS: Final = 500
"""Shortest time between the append times of two kept offsets, ms, so that a dozen of them cover
``AHEAD_MS``."""


class Growth:
    """Append times of about a dozen recent offsets of one log."""

    def __init__(self) -> None:
        self._marks: deque[tuple[int, int]] = deque(maxlen=AHEAD_MS // _STEP_MS + 2)
        self._last: tuple[int, int] | None = None

    def note(self, offset: int, appended_ms: int) -> None:
        """Note the source offset of a record that was read, and its append time, epoch
        milliseconds.
        """
        self._last = (appended_ms, offset)
        if not self._marks or appended_ms >= self._marks[-1][0] + _STEP_MS:
            self._marks.append(self._last)

    def offsets_ahead(self, end: int, now_ms: int) -> int:
        """Return the number of offsets expected within ``AHEAD_MS``: as many as in the last
        ``AHEAD_MS``. If no record of that time was read, an even growth since the last record read
        is assumed.

        Args:
            end: end offset of the log now.
            now_ms: now, epoch milliseconds.
        """
        if self._last is None:
            return 0
        lately = (mark for mark in self._marks if mark[0] >= now_ms - AHEAD_MS)
        appended_ms, offset = next(lately, self._last)
        return max(end - offset, 0) * AHEAD_MS // max(now_ms - appended_ms, AHEAD_MS)
