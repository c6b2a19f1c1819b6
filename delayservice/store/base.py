"""Store interface: pending records of one shard, in key order.

A store is a cache of the Kafka log. It may lose any suffix of what was appended if the horizon that
``open`` returns lies below it; the caller reads the log again from the horizon. Frames are plain
tuples because millions of them are handled (``bench whole``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from delayservice.base.errors import SlotDamagedError
from delayservice.contract.entry import OFFSET_MAX
from delayservice.engine.census import Census
from delayservice.engine.cursor import Cursor, Key
from delayservice.engine.pending import NO_MARK, Frame, Lump, Mark, Named

__all__ = ["NO_MARK", "Frame", "Lump", "Mark", "Named", "Store", "StoreStats"]


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Figures of a store for people and metrics: records, bytes, due time in epoch ms, and horizon.
    Counts may include settled records that are not pruned yet.
    """

    pending: int
    bytes: int
    oldest_due_ms: int | None
    durable_offset: int


class Scanner:
    """Reader of a store in small steps, between which the store may change.

    Args:
        scan: the ``scan`` method of the store.
    """

    def __init__(self, scan: Callable[[Key, int], Iterator[Frame]]) -> None:
        self._scan = scan

    def read(self, after: Key, upto_ms: int, limit: int) -> list[Frame]:
        """Return the frames of ``Store.read_due``, without changing the rows held for delivery."""
        return list(islice(self._scan(after, upto_ms), limit))

    def read_on(
        self, after: Key, upto: Key, limit: int
    ) -> tuple[list[Frame], Key, SlotDamagedError | None]:
        """Return at most ``limit`` rows above ``after``, the key up to which they are complete, and
        the damage right behind ``after``; None: no damage. With damage there are no rows, and the
        key lies behind it.
        """
        while True:
            try:
                rows = self.read(after, upto[0], limit)
            except SlotDamagedError as damage:
                before = (damage.start_ms - 1, OFFSET_MAX)
                if before > after:
                    upto = before  # rows before the damage are returned first
                    continue
                return [], (damage.stop_ms, -1), damage  # below the first key behind it
            return rows, rows[-1][:2] if rows else upto, None


class Store(ABC):
    """Store of the pending records of one shard. Single-threaded: the worker's loop owns it."""

    lumps_hold_marked: ClassVar[bool] = True
    """Whether marked records count in ``lumps``."""

    @abstractmethod
    def open(self) -> int:
        """Recover, and return the durable horizon S. Records of offsets below S are stored, or
        reported as damaged by reads; those of S and above are invisible until they are appended
        again. S is 0 if the store is new, or its manifest is missing or damaged.
        """

    @property
    @abstractmethod
    def label(self) -> bytes:
        """Return the label, bytes by which the owner notes how it read the records below S;
        ``b""``: there is no label. ``open`` finds horizon and label as they were at one moment:
        a label from before a change never comes with records from after it.
        """

    @abstractmethod
    def set_label(self, label: bytes) -> None:
        """Replace the label of all records, appended before or later; it is durable with the next
        sync at the latest. A crash before that restores the last durable label and horizon. So the
        new label has to be true of every record stored, or the owner resets the store first.

        Raises:
            StoreError: as ``append``.
        """

    @abstractmethod
    def append(
        self,
        frames: Sequence[Frame],
        named: Sequence[Named],
        marks: Sequence[Mark],
        stop_offset: int,
    ) -> None:
        """Add records and marks of offsets from the last ``stop_offset`` up to this one, in offset
        order. They are visible to reads at once, and durable after a later sync.

        ``frames``: records to keep. ``named``: those of them that have an id. ``marks``: records of
        this or earlier calls that are cancelled or replaced; a record is marked once. Appending a
        record again that survived a crash is harmless (same offset, same content).
        """

    @abstractmethod
    def read_due(self, after: Key, upto_ms: int, limit: int) -> list[Frame]:
        """Return at most ``limit`` frames with ``after < (key_ms, offset)`` and ``key_ms <=
        upto_ms``, in key order. Marked frames are included with their mark.

        Raises:
            SlotDamagedError: frames in that range are missing or damaged; call ``rebuild``, and
                read again.
        """

    @abstractmethod
    def next_due_ms(self, after: Key) -> int | None:
        """Return a lower bound of the ``key_ms`` of the first frame above ``after``; None: there is
        no such frame. The time, epoch milliseconds, may be early (a slot's start), never late.
        """

    @abstractmethod
    def rebuild(self, start_ms: int, stop_ms: int, frames: Sequence[Frame]) -> None:
        """Replace the records with keys in ``[start_ms, stop_ms)`` by ``frames``, which were read
        again from the log with their marks: after a ``SlotDamagedError``, or because other copies
        differ.
        """

    @abstractmethod
    def latest_unmarked(self, record_id: bytes, below: int) -> Key | None:
        """Return the key of the latest appended record of an id that is neither marked nor pruned;
        None: there is no such record. The cost does not depend on the id's history.

        Args:
            record_id: the id.
            below: the offset for which the look-up is made, at or above the stop offset.
        """

    @abstractmethod
    def marked_from(self, mark: int) -> list[tuple[int, Key]]:
        """Return ``(mark, key)`` of every kept record whose mark is ``mark`` or above, ascending.
        ``mark`` is at or above H of every ``prune`` so far.
        """

    @abstractmethod
    def prune(self, cursor: Cursor) -> None:
        """Delete what the committed ``cursor`` has settled, some of it in later calls if that is
        cheaper: frames with key <= K and offset < H, frames whose ``key_ms`` is below K's (those at
        or above H are read again from the log), frames with a mark below H, and those marks. All
        else is kept: a slot is deleted as a whole only when its exclusive end is <= K's ``key_ms``.
        """

    @abstractmethod
    def sync(self) -> int:
        """Make everything appended so far durable and return the new horizon.

        Raises:
            StoreError: an fsync failed; the process must exit: the page cache can't be trusted.
        """

    def sync_soon(self) -> None:
        """Start a sync, and return without waiting if the store can. The horizon then moves in a
        later call of any method. Calls before that have no further effect.

        Raises:
            StoreError: as ``sync``, here or in that later call.
        """
        self.sync()

    @abstractmethod
    def scan(self, after: Key, upto_ms: int) -> Iterator[Frame]:
        """Yield frames above ``after`` up to ``upto_ms`` in key order, for people and checks. The
        rows held in memory for delivery do not change.
        """

    def scanner(self) -> Scanner:
        """Return a reader in small steps, between which the store may change."""
        return Scanner(self.scan)

    @abstractmethod
    def lumps(self, start_ms: int, stop_ms: int) -> list[Lump]:
        """Return counts of the keys in ``[start_ms, stop_ms)``, as fine as is cheap; the outer
        lumps may reach beyond the range. Settled records that are not pruned yet are included, and
        marked ones if ``lumps_hold_marked``.

        Raises:
            StoreError: the store can't be read.
        """

    @property
    def census(self) -> Census | None:
        """Return counts by target and due time; None: they are not kept, or not known yet."""
        return None

    @abstractmethod
    def stats(self) -> StoreStats:
        """Return figures of the store; cheap enough for a call every second."""

    @abstractmethod
    def reset(self) -> None:
        """Delete everything, the label too, and start over from horizon 0, because the log no
        longer agrees with the store.
        """

    @abstractmethod
    def close(self) -> None:
        """Sync, and release every handle."""
