"""Store of a level topic's shard, and the proof that its log is the one that was read before.

Kafka's log is the store: all records of a level topic wait equally long, so it is in due order. No
record has an id, is rolled, or is parked there, and the outcome of one depends on no other. So the
owner begins at H at once, and a replica reads nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from delayservice.contract.entry import PolledRecord
from delayservice.engine.checkpoint import NOTHING_READ, LastRead
from delayservice.engine.ports import Bounds, PolledBatch
from delayservice.store.memory import MemoryStore


class LogWindow(MemoryStore):
    """Bounded first-in, first-out window of a log: the rows that are fetched ahead, until they are
    settled and committed. As a store it stays empty.

    ``park_topic`` returns the delay topic (same partition) for records whose target can't be
    written to; None: they are dead-lettered.
    """

    def __init__(
        self, records_max: int, bytes_max: int, park_topic: Callable[[], str | None]
    ) -> None:
        super().__init__()
        self.park_topic = park_topic
        self.proof = LevelProof()
        self._records_max = records_max
        self._bytes_max = bytes_max
        self.clear()

    def clear(self) -> None:
        self._rows: list[PolledRecord] = []
        self._staged = self._row_bytes = 0

    def fetched(self, rows: Sequence[PolledRecord]) -> None:
        self._rows += rows
        self._row_bytes += _content_bytes(rows)

    def head(self, limit: int) -> list[PolledRecord]:
        """Return the first rows that are not staged."""
        return self._rows[self._staged : self._staged + limit]

    def stage(self, count: int) -> None:
        self._staged += count

    def commit(self) -> None:
        gone = self._rows[: self._staged]
        del self._rows[: self._staged]
        self._row_bytes = self._row_bytes - _content_bytes(gone) if self._rows else 0
        self._staged = 0

    @property
    def waiting(self) -> int:
        return len(self._rows) - self._staged

    @property
    def is_full(self) -> bool:
        return self.waiting >= self._records_max or self._row_bytes >= self._bytes_max

    @property
    def is_half_empty(self) -> bool:
        return 2 * self.waiting <= self._records_max and 2 * self._row_bytes <= self._bytes_max

    @property
    def mean_bytes(self) -> float:
        return max(self._row_bytes / max(len(self._rows), 1), 1.0)


def _content_bytes(rows: Sequence[PolledRecord]) -> int:
    contents = sum([len(key or b"") + len(value or b"") for _, _, key, value, _ in rows])
    texts = [len(name) + len(text or b"") for row in rows for name, text in row[4] or ()]
    return contents + sum(texts)


# Factor by which the step back grows with each reading.
_FURTHER: Final = 8


class LevelProof:
    """Search in one level topic's log on its owner, for records that replaced lost ones.
    ``offset`` is H, or a lower offset that holds such a record.

    Nothing was lost up to a record whose epoch the last checkpoint knew, and the first record of a
    higher epoch is the first that H has not passed. The log is read again from just below H, then
    from further back, until a record of a known epoch is found.
    """

    def __init__(self) -> None:
        self.checkpoint_last = NOTHING_READ
        self.offset = 0
        self._is_over = True
        self._is_known = False
        self._log_start = self._begun_at = 0
        self._back = 1

    # It is H while the log is read again from below H, else 0.
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

    def look(self, run: PolledBatch) -> int | None:
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

    def note(self, run: PolledBatch) -> None:
        epoch, last = run.leader_epoch, run.rows[-1][0]
        if epoch >= 0 and (
            last > self.checkpoint_last.offset or epoch > self.checkpoint_last.leader_epoch
        ):
            self.checkpoint_last = LastRead(epoch, last)
