"""Store interfaces: pending records of one shard, in key order.

``DeliveryStore`` is what a lane of the worker's loop needs; ``StoreView`` is what people, digests,
checks and repairs look at. A store implements both.

A store is a cache of the Kafka log. It may lose any suffix of what was appended if the horizon that
``open`` returns lies below it; the caller reads the log again from the horizon. Frames are plain
tuples because millions of them are handled (``bench whole``). ``docs/glossary.md`` explains key,
mark, K, H and S.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from delayservice.base.errors import SlotDamagedError
from delayservice.contract.entry import OFFSET_MAX
from delayservice.engine.census import Census
from delayservice.engine.cursor import Cursor, Key
from delayservice.engine.pending import NO_MARK, Frame, Lump, Mark, Named

__all__ = ["NO_MARK", "DeliveryStore", "Frame", "Lump", "Mark", "Named", "Store", "StoreView"]

_SCAN_ROWS: Final = 1_000


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Figures of a store for people and metrics: number of records, bytes, and the horizon, a
    source offset. The number may include settled records that are not pruned yet.
    """

    pending: int
    bytes: int
    durable_offset: int


class Scanner:
    """Reader of a store in small steps, between which the store may change.

    Attributes:
        read: method that returns frames as ``Store.read_due`` does, and raises its errors,
            without changing the rows held in memory for delivery.
    """

    def __init__(self, read: Callable[[Key, int, int], list[Frame]]) -> None:
        self.read = read

    def frames(self, after: Key, upto_ms: int) -> Iterator[Frame]:
        """Yield all frames above ``after`` up to key time ``upto_ms``, epoch ms, in key order.

        Raises:
            SlotDamagedError: the next frames are missing or damaged.
        """
        while rows := self.read(after, upto_ms, _SCAN_ROWS):
            yield from rows
            after = rows[-1][:2]

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


class DeliveryStore(Protocol):
    """Store as delivery uses it. Single-threaded: the worker's loop owns it."""

    def open(self) -> int:
        """Recover, and return the durable horizon S. Records of offsets below S are stored, or
        reported as damaged by reads; those of S and above are invisible until they are appended
        again. S is 0 if the store is new, or its manifest is missing or damaged.
        """

    @property
    def label(self) -> bytes:
        """Return the label, bytes by which the owner notes how it read the records below S;
        ``b""``: there is no label. ``open`` finds horizon and label as they were at one moment:
        a label from before a change never comes with records from after it.
        """

    def set_label(self, label: bytes) -> None:
        """Replace the label of all records, appended before or later; it is durable with the next
        sync at the latest. A crash before that restores the last durable label and horizon. So the
        new label has to be true of every record stored, or the owner resets the store first.

        Raises:
            StoreError: as ``append``.
        """

    def append(
        self,
        frames: Sequence[Frame],
        named: Sequence[Named],
        marks: Sequence[Mark],
        stop_offset: int,
    ) -> None:
        """Add records and marks of offsets from the last ``stop_offset`` up to this one, in offset
        order. They are visible to reads at once, and durable after a later sync. Appending a record
        again that survived a crash is harmless (same offset, same content).

        Args:
            frames: records to keep.
            named: those of ``frames`` that have an id.
            marks: records of this or earlier calls that are cancelled or replaced; a record is
                marked once.
            stop_offset: the new S.

        Raises:
            StoreError: the disk is full or fails.
        """

    def read_due(self, after: Key, upto_ms: int, limit: int) -> list[Frame]:
        """Return at most ``limit`` frames with ``after < (key_ms, offset)`` and ``key_ms <=
        upto_ms``, epoch milliseconds, in key order. Marked frames are included with their mark.

        Raises:
            SlotDamagedError: frames in that range are missing or damaged; call ``rebuild``, and
                read again.
        """

    def next_due_ms(self, after: Key) -> int | None:
        """Return a lower bound of the ``key_ms`` of the first frame above ``after``; None: there is
        no such frame. The time, epoch milliseconds, may be early (a slot's start), never late.
        """

    def latest_unmarked(self, record_id: bytes, below: int) -> Key | None:
        """Return the key of the latest appended record of an id that is neither marked nor pruned;
        None: there is no such record. The cost does not depend on the id's history.

        Args:
            record_id: the id.
            below: the offset for which the look-up is made, at or above the stop offset.
        """

    def marked_from(self, mark: int) -> list[tuple[int, Key]]:
        """Return ``(mark, key)`` of every kept record whose mark (offset of its canceller) is
        ``mark`` or above, ascending. ``mark`` is at or above H of every ``prune`` so far.
        """

    def scanner(self) -> Scanner:
        """Return a reader in small steps, between which the store may change."""

    def rebuild(self, start_ms: int, stop_ms: int, frames: Sequence[Frame]) -> None:
        """Replace the records with keys in ``[start_ms, stop_ms)``, epoch milliseconds, by
        ``frames``, which were read again from the log with their marks: after a
        ``SlotDamagedError``, or because other copies differ.
        """

    def prune(self, cursor: Cursor) -> None:
        """Delete what the committed ``cursor`` has settled, some of it in later calls if that is
        cheaper: frames with key <= K and offset < H, frames whose ``key_ms`` is below K's (those at
        or above H are read again from the log), frames with a mark below H, and those marks. All
        else is kept: a slot is deleted as a whole only when its exclusive end is <= K's ``key_ms``.
        """

    def sync(self, *, wait: bool = True) -> int:
        """Make everything appended so far durable, and return the durable horizon.

        Args:
            wait: if False, only start a sync, and return without waiting if the store can. The
                horizon then moves in a later call of any method, and calls before that have no
                further effect.

        Raises:
            StoreError: an fsync failed, of this call or an earlier one; the process must exit: the
                page cache can't be trusted.
        """

    def reset(self) -> None:
        """Delete everything, the label too, and start over from horizon 0, because the log no
        longer agrees with the store.
        """

    def close(self) -> None:
        """Sync, and release every handle."""


class StoreView(Protocol):
    """Store as people, digests, checks and repairs look at it; nothing here changes a record."""

    def latest_unmarked(self, record_id: bytes, below: int) -> Key | None:
        """Return the key of an id's latest unmarked record; see ``DeliveryStore``."""

    def scanner(self) -> Scanner:
        """Return a reader in small steps, between which the store may change."""

    def lumps(self, start_ms: int, stop_ms: int) -> list[Lump]:
        """Return counts of the keys in ``[start_ms, stop_ms)``, epoch milliseconds, as fine as is
        cheap; the outer lumps may reach beyond the range. Settled records that are not pruned yet
        are included. Marked records are included in lumps wider than one millisecond only.

        Raises:
            StoreError: the store can't be read.
        """

    @property
    def census(self) -> Census | None:
        """Return counts by target and due time; None: they are not kept, or not known yet."""
        return None

    def stats(self) -> StoreStats:
        """Return figures of the store; cheap enough for a call every second."""


class Store(DeliveryStore, StoreView, Protocol):
    """Store of the pending records of one shard, for delivery and for looking at it."""
