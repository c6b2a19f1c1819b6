"""Growth rate of a log, by the append times of records that were read. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

AHEAD_MS: Final = 5_000
"""A new contract begins as many offsets above the end of the log as were appended in this time.

From reading the end of the log to the moment when every replica has read the checkpoint that names
the contract, a commit and a fetch pass: some 10 ms, and a second or two on a busy cluster.
"""

_STEP_MS: Final = 500
"""Least distance of two marks, in append time: so a few of them cover ``AHEAD_MS``."""


class Growth:
    """Marks of one log: which offset was appended when. Bounded."""

    def __init__(self) -> None:
        self._marks: deque[tuple[int, int]] = deque(maxlen=AHEAD_MS // _STEP_MS + 2)
        self._last: tuple[int, int] | None = None

    def note(self, offset: int, appended_ms: int) -> None:
        """Take a record that was read; ``appended_ms``: its append time, epoch milliseconds."""
        self._last = (appended_ms, offset)
        if not self._marks or appended_ms >= self._marks[-1][0] + _STEP_MS:
            self._marks.append(self._last)

    def offsets_ahead(self, end: int, now_ms: int) -> int:
        """Return how many offsets are to be expected within ``AHEAD_MS``: as many as came within
        the last. Where none of them was read yet, what is unread since the last record that was
        read counts evenly.

        Args:
            end: of the log now.
            now_ms: now, epoch milliseconds.
        """
        if self._last is None:
            return 0
        lately = (mark for mark in self._marks if mark[0] >= now_ms - AHEAD_MS)
        appended_ms, offset = next(lately, self._last)
        return max(end - offset, 0) * AHEAD_MS // max(now_ms - appended_ms, AHEAD_MS)
