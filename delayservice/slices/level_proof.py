"""Search for records below H that replaced lost records of a level topic's log.

A log that loses its end and grows again has new records at offsets below H. Leader epochs (numbers
of partition leaders) rise along a log. So nothing was lost up to a record whose epoch the last
checkpoint knew. The first record of a higher epoch is the first that H has not passed. There is no
store to compare with: the log is read again from just below H, then from further back, until a
record of a known epoch is found.
"""

from __future__ import annotations

from typing import Final

from delayservice.engine.checkpoint import NOTHING_READ, LastRead
from delayservice.engine.ports import Bounds, Run

# Each reading steps so much further back.
_FURTHER: Final = 8


class LevelProof:
    """Search in one level topic's log on its owner, for records that replaced lost ones.
    ``offset`` is H, or a lower offset that holds such a record.
    """

    def __init__(self) -> None:
        self.checkpoint_last = NOTHING_READ
        self.offset = 0
        self._is_over = True
        self._is_known = False
        self._log_start = self._begun_at = 0
        self._back = 1

    # H while the log is read again from below H, else 0.
    @property
    def awaited_end(self) -> int:
        return 0 if self._is_over or self._begun_at >= self.offset else self.offset

    def begin(self, offset: int, last_read: LastRead, bounds: Bounds) -> int:
        """Start the search; return the offset to read from: H, or the one below if the log's
        leader has changed since ``last_read``.
        """
        epoch = last_read.leader_epoch
        # Without its offset: the record may be lost, and is read again if it is not.
        self.checkpoint_last = LastRead(epoch)
        self.offset, self._log_start = offset, bounds.start
        self._is_over, self._is_known, self._back = epoch < 0, False, 1
        is_same = epoch in (-1, bounds.leader_epoch)
        self._begun_at = offset if is_same else max(bounds.start, offset - 1)
        return self._begun_at

    def look(self, run: Run) -> int | None:
        """Lower ``offset`` to the first record that replaced a lost one; return an earlier
        offset from which to read again, or None.
        """
        if self._is_over:
            return None
        is_newer = bool(run.rows) and run.leader_epoch > self.checkpoint_last.leader_epoch
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
        epoch, last = run.leader_epoch, run.rows[-1][0]
        if epoch >= 0 and (
            last > self.checkpoint_last.offset or epoch > self.checkpoint_last.leader_epoch
        ):
            self.checkpoint_last = LastRead(epoch, last)
