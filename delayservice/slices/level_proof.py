"""Finds where a level topic's log holds other records below H than those that H has passed.

A log that loses its end, and grows again, has new records at offsets below H. Leader epochs ascend
along a log: up to a record whose epoch the writer of the checkpoint knew, nothing was lost, and the
first record of a higher epoch is the first that H has not passed. There is no store to compare
with, so the log is read again from right below H, and from ever further back until it shows such a
record.
"""

from __future__ import annotations

from typing import Final

from delayservice.engine.checkpoint import NOTHING_READ, LastRead
from delayservice.engine.ports import Bounds, Run

_FURTHER: Final = 8
"""Each look begins so many times as far below H as the one before."""


class LevelProof:
    """The facts that an owner knows about one level topic's log. Single-threaded, as the lane is.

    Attributes:
        committed_last: the newest record that was read, as the next checkpoint says.
        offset: H, or the first offset below it that H has not passed after all.
    """

    def __init__(self) -> None:
        self.committed_last = NOTHING_READ
        self.offset = 0
        self._is_over = True
        self._is_known = False
        self._log_start = self._begun_at = 0
        self._back = 1

    @property
    def awaited_end(self) -> int:
        """H while the log is read again from below it; else 0."""
        return 0 if self._is_over or self._begun_at >= self.offset else self.offset

    def begin(self, offset: int, last_read: LastRead, bounds: Bounds) -> int:
        """Return where to read from: H, or below it if another leader has the log."""
        epoch = last_read.leader_epoch
        self.committed_last = LastRead(
            epoch
        )  # the record may be lost, and is read again if it is not
        self.offset, self._log_start = offset, bounds.start
        self._is_over, self._is_known, self._back = epoch < 0, False, 1
        is_same = epoch in (-1, bounds.leader_epoch)
        self._begun_at = offset if is_same else max(bounds.start, offset - 1)
        return self._begun_at

    def look(self, run: Run) -> int | None:
        """Look at a run, and move ``offset`` back to what replaced lost records; return where to
        read from instead of going on, or None.
        """
        if self._is_over:
            return None
        is_newer = bool(run.rows) and run.leader_epoch > self.committed_last.leader_epoch
        self._is_known |= bool(run.rows) and not is_newer
        if not is_newer and run.stop < self.offset:
            return None
        if not self._is_known and self._begun_at > self._log_start:
            self._begun_at = max(self._log_start, self._begun_at - self._back)
            self._back *= _FURTHER
            return self._begun_at
        self._is_over = True
        if is_newer:
            self.offset = min(self.offset, run.rows[0][0])
        return None

    def note(self, run: Run) -> None:
        """Note what was read at H or above."""
        epoch, last = run.leader_epoch, run.rows[-1][0]
        if epoch >= 0 and (
            last > self.committed_last.offset or epoch > self.committed_last.leader_epoch
        ):
            self.committed_last = LastRead(epoch, last)
