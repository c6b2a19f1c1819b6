"""Proof that a log is still the one that was read: records that it has to hold, and leader epochs.

A log that loses its end, and grows again, has other records at the same offsets. They are told
apart by the epoch of the leader that appended them: it ascends along a log and from life to life.
"""

from __future__ import annotations

from delayservice.base.errors import LogTruncatedError
from delayservice.engine.checkpoint import NOTHING_READ, LastRead
from delayservice.engine.cursor import Cursor
from delayservice.engine.ports import Bounds, Run
from delayservice.engine.shard import Shard


class LogProof:
    """The facts that one lane knows about its log. Single-threaded, as the lane is.

    Args:
        topic: the delay topic.
        partition: its partition.
        shard: how far the lane is.

    Attributes:
        committed_last: of an owner, the last record read as its checkpoints say.
        is_whole: whether all that is stored was read in this life, from a log that has kept it
            since.
    """

    def __init__(self, topic: str, partition: int, shard: Shard) -> None:
        self._name = f"{topic}:{partition}"
        self._shard = shard
        self.committed_last = NOTHING_READ
        self.is_whole = shard.stored == 0
        self._last_read = NOTHING_READ
        self._read_stop = 0
        """End of that reading: no record lies between ``_last_read`` and here."""
        self._log_start = 0
        """Start of the log when ``expire`` was called last."""
        self._epochs: list[LastRead] = []
        """The first record that was read of each leader epoch, since the store began or in this
        life."""
        self._doubts: list[LastRead] = []
        self._unproved_from = self._unproved_stop = 0
        """Offsets that a life before had stored when it crashed, after it had noted what it read
        last."""

    def restore(self, last_read: LastRead, read_stop: int) -> None:
        """Go on with what an earlier life had read last, if the store still holds that record."""
        if 0 <= last_read.offset < self._shard.stored:
            self._last_read, self._read_stop = last_read, read_stop
            if read_stop < self._shard.stored:
                self._unproved_from, self._unproved_stop = last_read.offset, self._shard.stored

    @property
    def position(self) -> tuple[LastRead, int]:
        """Return the last record that was read, and where that reading stopped."""
        return self._last_read, self._read_stop

    @property
    def is_doubtful(self) -> bool:
        """Return whether records have to be read again before anything is settled."""
        return bool(self._doubts) or self._unproved_from < self._unproved_stop

    def doubted_from(self, wanted: int) -> int:
        """Return where to read next: the first record that is in doubt, or else ``wanted``."""
        doubted = [known.offset for known in self._doubts]
        if self._unproved_from < self._unproved_stop:
            doubted.append(self._unproved_from)
        return min(doubted, default=wanted)

    def last_below(self, offset: int) -> LastRead:
        """Return the last record below ``offset``, where it was read; see ``AnyLane``."""
        is_held = self._last_read.offset >= max(self._log_start - 1, 0)
        is_known = is_held and self._last_read.offset < offset <= self._read_stop
        return self._last_read if is_known else NOTHING_READ

    def first_newer(self, cursor: Cursor, last_read: LastRead) -> LastRead | None:
        """Return the first record below H of a higher epoch than the writer of the checkpoint had
        read by then: it stands in place of what the log has lost, and H has not passed it.
        """
        if last_read.leader_epoch < 0:
            return None
        newer = (first for first in self._epochs if first.leader_epoch > last_read.leader_epoch)
        first = next(newer, None)
        return first if first is not None and first.offset < cursor.offset else None

    # --- roles ---------------------------------------------------------------------------------

    def follow(self) -> None:
        """Be a replica's: nothing is settled, so nothing is in doubt."""
        self.committed_last = NOTHING_READ
        self._doubts.clear()

    def take_over(self, last_read: LastRead, bounds: Bounds) -> None:
        """Be an owner's. ``last_read``: as its checkpoint says; ``bounds``: of the log now."""
        self.committed_last = last_read
        known = (last_read, self._last_read)
        self._doubts = [one for one in known if self._has_to_be_read(one, bounds)]

    def _has_to_be_read(self, known: LastRead, bounds: Bounds) -> bool:
        """Return whether the log may have been truncated since this record was read, and has grown
        again: it has another leader now, and nothing that has to be read in any case would show it.
        """
        return (
            0 <= known.leader_epoch != bounds.leader_epoch
            and bounds.start <= known.offset < self._shard.stored
        )

    # --- forget --------------------------------------------------------------------------------

    def expire(self, start: int) -> bool:
        """Note that the log starts at ``start`` now; return whether the client may have begun
        behind the last record that was read, which is gone.
        """
        self._unproved_from = max(self._unproved_from, start)
        is_gone = max(self._log_start - 1, 0) <= self._last_read.offset < start - 1
        self._log_start = max(self._log_start, start)
        return is_gone

    def forget_last(self) -> None:
        """Forget the last record that was read: the log has lost it, or may have."""
        self._last_read = NOTHING_READ

    def start_over(self) -> None:
        """Begin with an empty store: all that will be in it is read from now on."""
        self._epochs.clear()
        self._unproved_from = self._unproved_stop = 0
        self.is_whole = True

    # --- read ----------------------------------------------------------------------------------

    def prove(self, run: Run) -> None:
        """See that this is the log that was read before, as far as it is read again.

        Raises:
            LogTruncatedError: it is not; the shard has to be fitted to it.
        """
        self._doubts = [known for known in self._doubts if known.offset >= run.stop]
        for known in (self._last_read, self.committed_last):
            if run.start <= known.offset < run.stop and not _holds(run, known):
                raise self._truncated(f"offset {known.offset} no longer holds what was read there")
        self._prove_stored(run)
        if not run.rows and run.start <= self._read_stop:
            self._read_stop = max(self._read_stop, run.stop)
        if not run.rows or run.leader_epoch < 0:
            return
        epoch, first, last = run.leader_epoch, run.rows[0][0], run.rows[-1][0]
        if epoch > (self._epochs[-1][0] if self._epochs else -1):
            self._epochs.append(LastRead(epoch, first))
        if self._shard.owned:
            self._prove_owned(epoch, first, last)
        if last > self._last_read.offset:
            self._last_read, self._read_stop = LastRead(epoch, last), run.stop

    def _prove_stored(self, run: Run) -> None:
        """Prove that the last stored records are of the epoch that the label names."""
        if not run.start <= self._unproved_from < run.stop:
            return
        is_newer = run.leader_epoch > self._last_read.leader_epoch
        if is_newer and run.rows[0][0] < self._unproved_stop:
            raise self._truncated(f"offset {run.rows[0][0]} was written after it had been stored")
        self._unproved_from = run.stop

    def _prove_owned(self, epoch: int, first: int, last: int) -> None:
        before, h = self.committed_last, self._shard.committed.offset
        if first < h and epoch > before.leader_epoch >= 0:
            is_stored = not self.is_whole or self._shard.stored > first
            why = f"offset {first} was written after H had passed it"
            raise self._truncated(why, is_stored=is_stored)
        if last >= h and (last > before.offset or epoch > before.leader_epoch):
            self.committed_last = LastRead(epoch, last)

    def _truncated(self, why: str, *, is_stored: bool = True) -> LogTruncatedError:
        why = f"{self._name} {why}: the log has lost its end, and grown again"
        return LogTruncatedError(why, is_stored=is_stored)


def _holds(run: Run, known: LastRead) -> bool:
    """Return whether a run that covers the offset of a record holds that record."""
    is_there = any(row[0] == known.offset for row in run.rows)
    return is_there and run.leader_epoch in (known.leader_epoch, -1)
