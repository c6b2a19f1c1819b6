"""Check that a log still holds the records that were read from it, by their offsets and leader
epochs.

A log that loses its end and grows again has other records at the same offsets. They differ in the
leader epoch, the number of the partition leader that appended them. It rises with each new leader.
"""

from __future__ import annotations

from delayservice.base.errors import LogTruncatedError
from delayservice.engine.checkpoint import NOTHING_READ, LastRead
from delayservice.engine.cursor import Cursor
from delayservice.engine.ports import Bounds, Run
from delayservice.engine.shard import Shard


class LogProof:
    """Known facts about the log of one lane, and checks against them. Only the thread of the
    worker's loop uses it.

    Args:
        topic: the delay topic.
        partition: its partition.
        shard: progress of the lane.

    Attributes:
        checkpoint_last: on an owner, the last record read, which its next checkpoint names.
        is_whole: whether the store was empty when this process opened it, or was emptied since, so
            that this process has read and checked all stored records.
    """

    def __init__(self, topic: str, partition: int, shard: Shard) -> None:
        self._name = f"{topic}:{partition}"
        self._shard = shard
        self.checkpoint_last = NOTHING_READ
        self.is_whole = shard.stored == 0
        self._last_read = NOTHING_READ
        self._read_stop = 0
        """Source offset, exclusive, up to which the log holds no record above ``_last_read``."""
        self._log_start = 0
        """First source offset of the log when ``expire`` was called last."""
        self._epochs: list[LastRead] = []
        """First record read of each leader epoch, since the process or an empty store began."""
        self._doubts: list[LastRead] = []
        """Records that an owner has to read again, to see whether the log still holds them."""
        self._unproved_from = self._unproved_stop = 0
        """Start, and as ``_unproved_stop`` the exclusive end, of the offsets that an earlier
        process stored after it last wrote the store's label."""

    def restore(self, last_read: LastRead, read_stop: int) -> None:
        """Set the last record read, and ``read_stop``, the source offset up to which the log was
        read, exclusive; both come from the store's label. Do nothing if the store no longer holds
        the record.
        """
        if 0 <= last_read.offset < self._shard.stored:
            self._last_read, self._read_stop = last_read, read_stop
            if read_stop < self._shard.stored:
                self._unproved_from, self._unproved_stop = last_read.offset, self._shard.stored

    @property
    def position(self) -> tuple[LastRead, int]:
        """Return the last record that was read (offset and leader epoch), and the source offset up
        to which the log was read, exclusive.
        """
        return self._last_read, self._read_stop

    @property
    def is_doubtful(self) -> bool:
        """Return whether records must be read from the log again before any record is settled."""
        return bool(self._doubts) or self._unproved_from < self._unproved_stop

    def doubted_from(self, wanted: int) -> int:
        """Return the lowest source offset that has to be read again; if there is none, ``wanted``,
        the offset to read next.
        """
        doubted = [known.offset for known in self._doubts]
        if self._unproved_from < self._unproved_stop:
            doubted.append(self._unproved_from)
        return min(doubted, default=wanted)

    def last_below(self, offset: int) -> LastRead:
        """Return offset and leader epoch of the last record below ``offset``; ``NOTHING_READ`` if
        that record was not read or has expired.
        """
        is_held = self._last_read.offset >= max(self._log_start - 1, 0)
        is_known = is_held and self._last_read.offset < offset <= self._read_stop
        return self._last_read if is_known else NOTHING_READ

    def first_newer(self, cursor: Cursor, last_read: LastRead) -> LastRead | None:
        """Return the first record read below H whose leader epoch is higher than that of
        ``last_read``, the checkpoint's last record. It was written in the place of a lost record,
        and H has not passed it. None: there is no such record.
        """
        if last_read.leader_epoch < 0:
            return None
        newer = (first for first in self._epochs if first.leader_epoch > last_read.leader_epoch)
        first = next(newer, None)
        return first if first is not None and first.offset < cursor.offset else None

    # --- roles ---------------------------------------------------------------------------------

    def follow(self) -> None:
        """Clear ``checkpoint_last`` and the records that an owner reads again: a replica settles
        nothing.
        """
        self.checkpoint_last = NOTHING_READ
        self._doubts.clear()

    def take_over(self, last_read: LastRead, bounds: Bounds) -> None:
        """Determine the records that an owner has to read again. ``last_read``: last record read by
        the owner that wrote the checkpoint; ``bounds``: the log's ends and leader epoch now.
        """
        self.checkpoint_last = last_read
        known = (last_read, self._last_read)
        self._doubts = [one for one in known if self._has_to_be_read(one, bounds)]

    def _has_to_be_read(self, known: LastRead, bounds: Bounds) -> bool:
        """Return whether the record ``known`` has to be read again: it lies below S, and the log
        has another leader since, so it may have been truncated and grown again.
        """
        return (
            0 <= known.leader_epoch != bounds.leader_epoch
            and bounds.start <= known.offset < self._shard.stored
        )

    # --- forget --------------------------------------------------------------------------------

    def expire(self, start: int) -> bool:
        """Note that the log starts at source offset ``start`` now. Return True if the last record
        that was read has expired, so that the client has to seek again.
        """
        self._unproved_from = max(self._unproved_from, start)
        is_gone = max(self._log_start - 1, 0) <= self._last_read.offset < start - 1
        self._log_start = max(self._log_start, start)
        return is_gone

    def forget_last(self) -> None:
        """Clear the last record read, because the log may have lost it."""
        self._last_read = NOTHING_READ

    def start_over(self) -> None:
        """Clear all leader epochs and offsets to be checked, and set ``is_whole``, because the
        store was emptied.
        """
        self._epochs.clear()
        self._unproved_from = self._unproved_stop = 0
        self.is_whole = True

    # --- read ----------------------------------------------------------------------------------

    def prove(self, run: Run) -> None:
        """Check that polled records agree with the records that were read before, and note their
        last record and their leader epoch. ``run``: records with consecutive offsets.

        Raises:
            LogTruncatedError: they do not agree, because the log was truncated; call ``refit`` of
                the lane.
        """
        self._doubts = [known for known in self._doubts if known.offset >= run.stop]
        for known in (self._last_read, self.checkpoint_last):
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
        """Check that records which were stored before a crash, after the store's label was written,
        have no higher leader epoch than the label's last record. Raise ``LogTruncatedError`` for a
        higher epoch: such a record replaced a lost one.
        """
        if not run.start <= self._unproved_from < run.stop:
            return
        is_newer = run.leader_epoch > self._last_read.leader_epoch
        if is_newer and run.rows[0][0] < self._unproved_stop:
            raise self._truncated(f"offset {run.rows[0][0]} was written after it had been stored")
        self._unproved_from = run.stop

    def _prove_owned(self, epoch: int, first: int, last: int) -> None:
        before, h = self.checkpoint_last, self._shard.committed.offset
        if first < h and epoch > before.leader_epoch >= 0:
            is_stored = not self.is_whole or self._shard.stored > first
            why = f"offset {first} was written after H had passed it"
            raise self._truncated(why, is_stored=is_stored)
        if last >= h and (last > before.offset or epoch > before.leader_epoch):
            self.checkpoint_last = LastRead(epoch, last)

    def _truncated(self, why: str, *, is_stored: bool = True) -> LogTruncatedError:
        why = f"{self._name} {why}: the log has lost its end, and grown again"
        return LogTruncatedError(why, is_stored=is_stored)


def _holds(run: Run, known: LastRead) -> bool:
    """Return whether ``run``, whose offsets include that of the record ``known``, contains this
    record, with the same leader epoch.
    """
    is_there = any(row[0] == known.offset for row in run.rows)
    return is_there and run.leader_epoch in (known.leader_epoch, -1)
