"""Whether a log still holds the records that were read of it, by the leader epochs of records.

A log that loses its end and grows again has other records at the same offsets. They have a higher
leader epoch, the number of the partition leader that appended them.

The Kafka client itself checks each position that it is given with an epoch (KIP-320), so no record
is read again. Where each epoch begins in the store tells whether H of a checkpoint belongs to the
same log. ``log_window`` has the proof of level topics, which have no store.
"""

from __future__ import annotations

from delayservice.base.errors import LogTruncatedError
from delayservice.engine.checkpoint import NOTHING_READ, LastRead
from delayservice.engine.cursor import Cursor
from delayservice.engine.ports import Bounds, PolledBatch
from delayservice.engine.shard import Shard


class LogProof:
    """Leader epochs of the records of one lane's store. Only the loop's thread uses it.

    ``epochs`` are the first stored record of each, ascending. ``is_unproved``: an owner still waits
    for the first batch, or the log's end, from a position that the client has to check.
    """

    def __init__(self, topic: str, partition: int, shard: Shard) -> None:
        self._name = f"{topic}:{partition}"
        self._shard = shard
        self.checkpoint_last = NOTHING_READ
        self.epochs: tuple[LastRead, ...] = ()
        self.is_unproved = False
        self._last_read = NOTHING_READ
        # The log holds no record above ``_last_read`` below this.
        self._read_stop = 0
        self._log_start = 0

    def restore(
        self, last_read: LastRead, read_stop: int, epochs: tuple[LastRead, ...] = ()
    ) -> None:
        """Set the facts of the store's label. ``read_stop``: the log was read up to it, exclusive.

        After a crash the label and S may be of different times. A label names an epoch before a
        record of it is stored, so the epochs below S are known; the last record is not, and the
        highest of these epochs stands for it at S.
        """
        stored = self._shard.stored
        self.epochs = tuple(first for first in epochs if first.offset < stored)
        if 0 <= last_read.offset < stored <= read_stop:
            self._last_read, self._read_stop = last_read, read_stop
        elif self.epochs:
            self._last_read = LastRead(self._newest, stored - 1)
            self._read_stop = stored

    # The last record read, and the offset up to which the log was read.
    @property
    def position(self) -> tuple[LastRead, int]:
        return self._last_read, self._read_stop

    @property
    def _newest(self) -> int:
        return self.epochs[-1].leader_epoch if self.epochs else -1

    def last_below(self, offset: int) -> LastRead:
        """Return the last record below ``offset``; ``NOTHING_READ``: not read, or expired."""
        is_held = self._last_read.offset >= max(self._log_start - 1, 0)
        is_known = is_held and self._last_read.offset < offset <= self._read_stop
        return self._last_read if is_known else NOTHING_READ

    # Whether the newest record was read of a leader with this epoch or a later one. An unknown
    # epoch, -1, counts as the same.
    def is_read_by(self, leader_epoch: int) -> bool:
        return self._newest >= leader_epoch

    def first_newer(self, cursor: Cursor, last_read: LastRead) -> LastRead | None:
        """Return the first record below H with a higher epoch than the checkpoint's last record:
        it replaced a lost one, and H has not passed it.
        """
        if last_read.leader_epoch < 0:
            return None
        newer = (first for first in self.epochs if first.leader_epoch > last_read.leader_epoch)
        first = next(newer, None)
        return first if first is not None and first.offset < cursor.offset else None

    # --- roles ---------------------------------------------------------------------------------

    def follow(self) -> None:
        """Clear what only an owner needs: a replica settles nothing."""
        self.checkpoint_last = NOTHING_READ
        self.is_unproved = False

    def take_over(self, last_read: LastRead, bounds: Bounds) -> None:
        """Begin as an owner. If the log has another leader than the one that the checkpoint's
        last record was read of, the client has to check the position first.
        """
        self.checkpoint_last = last_read
        is_other = 0 <= self._last_read.leader_epoch != bounds.leader_epoch
        self.is_unproved = is_other and self.last_below(self._shard.stored) is not NOTHING_READ

    # --- forget --------------------------------------------------------------------------------

    def expire(self, start: int) -> bool:
        """Note the log's start; return whether the last record read has expired: seek again."""
        is_gone = max(self._log_start - 1, 0) <= self._last_read.offset < start - 1
        self._log_start = max(self._log_start, start)
        gone = sum(1 for after in self.epochs[1:] if after.offset <= start)
        self.epochs = self.epochs[gone:]
        return is_gone

    def start_over(self) -> None:
        self.epochs = ()

    def forget_last(self) -> None:
        self._last_read = NOTHING_READ
        self.is_unproved = False

    # --- read ----------------------------------------------------------------------------------

    def prove(self, run: PolledBatch) -> None:
        """Check polled records before they are stored, and note a new leader epoch. Raise
        ``LogTruncatedError`` if they replaced lost ones; call ``refit`` of the lane.
        """
        self.is_unproved = False
        if not run.rows or run.leader_epoch < 0:
            return
        epoch, first, newest = run.leader_epoch, run.rows[0][0], self._newest
        if epoch > newest >= 0 and first < self._shard.stored:
            raise self._truncated(f"offset {first} was written after it had been stored")
        if epoch > newest:
            self.epochs = (*self.epochs, LastRead(epoch, first))
        before = self.checkpoint_last
        is_passed = self._shard.owned and first < self._shard.committed.offset
        if is_passed and epoch > before.leader_epoch >= 0:
            why = f"offset {first} was written after H had passed it"
            raise self._truncated(why, is_stored=False)

    def note(self, run: PolledBatch) -> None:
        """Note that polled records, which were proved, are stored."""
        if not run.rows:
            if run.start <= self._read_stop:
                self._read_stop = max(self._read_stop, run.stop)
            return
        if run.leader_epoch < 0:
            return
        epoch, last, before = run.leader_epoch, run.rows[-1][0], self.checkpoint_last
        is_above = self._shard.owned and last >= self._shard.committed.offset
        if is_above and (last > before.offset or epoch > before.leader_epoch):
            self.checkpoint_last = LastRead(epoch, last)
        if last > self._last_read.offset:
            self._last_read, self._read_stop = LastRead(epoch, last), run.stop

    def _truncated(self, why: str, *, is_stored: bool = True) -> LogTruncatedError:
        why = f"{self._name} {why}: the log has lost its end, and grown again"
        return LogTruncatedError(why, is_stored=is_stored)
