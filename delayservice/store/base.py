"""Store interfaces: pending records of one shard, in key order.

``DeliveryStore`` is the part that a lane uses to deliver; ``StoreView`` is the part that people,
digests, checks and repairs read. A store implements both.

A store is a cache of the Kafka log. It may lose the records appended last in a crash: ``open``
returns the horizon, an offset, and the caller reads the log again from there. A pending record is a
``Frame``, a plain tuple, because millions of them are handled (``bench whole``).
``docs/glossary.md`` explains key, mark, K, H and S.
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
    """Figures of a store for people and metrics: number of pending records, bytes on the disk and
    in memory, and the durable horizon (a source offset). The number may include settled records
    that are not pruned yet.
    """

    pending: int
    bytes: int
    durable_offset: int


class Scanner:
    """Reader of a store in small steps; the store may change between two steps.

    Attributes:
        read: function ``(after, upto_ms, limit)`` that returns records as ``Store.read_due`` does,
            and raises its errors, without changing the rows held in memory for delivery.
    """

    def __init__(self, read: Callable[[Key, int, int], list[Frame]]) -> None:
        self.read = read

    def frames(self, after: Key, upto_ms: int) -> Iterator[Frame]:
        """Yield all records with keys above ``after`` and a key time up to ``upto_ms``, inclusive,
        in epoch ms, in key order.

        Raises:
            SlotDamagedError: the next records are missing or damaged.
        """
        while rows := self.read(after, upto_ms, _SCAN_ROWS):
            yield from rows
            after = rows[-1][:2]

    def read_on(
        self, after: Key, upto: Key, limit: int
    ) -> tuple[list[Frame], Key, SlotDamagedError | None]:
        """Read one step of the key range from ``after``, exclusive, to ``upto``, inclusive.

        Returns:
            A tuple of at most ``limit`` records in key order, the key up to which the range has
            been read now, and the damage that begins right behind ``after``, or None. With damage
            there are no records, and the key lies behind the damage.
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
    """Store as a lane uses it for delivery. Only the worker's thread may call it."""

    def open(self) -> int:
        """Open the store, and return its durable horizon S. Records with offsets below S are
        stored, or reads report them as damaged; records from S on are invisible until they are
        appended again. S is 0 if the store is new, or its manifest is missing or damaged.
        """

    @property
    def label(self) -> bytes:
        """Return the label: bytes that state the contracts and cluster secrets by which the records
        below S were read; ``b""``: there is no label. After a crash, ``open`` restores label and
        horizon of the same moment, so an old label never comes with newer records.
        """

    def set_label(self, label: bytes) -> None:
        """Replace the label: bytes that state the contracts and cluster secrets by which all stored
        records were read. It is durable with the next sync at the latest; a crash before that
        restores the last durable label and horizon. So the new label must be true of every stored
        record, or the caller resets the store first.

        Raises:
            StoreError: the disk is full or fails.
        """

    def append(
        self,
        frames: Sequence[Frame],
        named: Sequence[Named],
        marks: Sequence[Mark],
        stop_offset: int,
    ) -> None:
        """Add the records and marks that the log holds from the last ``stop_offset``, inclusive, up
        to this one, exclusive, in offset order. Reads see them at once; a later sync makes them
        durable. A record that survived a crash may be appended again, with the same offset and
        content.

        Args:
            frames: the records.
            named: id and key of those records in ``frames`` that have an id.
            marks: for each stored record that is cancelled, replaced or fired: its id, its key, and
                the offset of its canceller. A record is marked once.
            stop_offset: the new S, a source offset.

        Raises:
            StoreError: the disk is full or fails.
        """

    def read_due(self, after: Key, upto_ms: int, limit: int) -> list[Frame]:
        """Return at most ``limit`` records with ``after < (key_ms, offset)`` and ``key_ms <=
        upto_ms``, epoch milliseconds, in key order. Marked records are included, with their marks.

        Raises:
            SlotDamagedError: records in this range are missing or damaged; call ``rebuild``, and
                read again.
        """

    def next_due_ms(self, after: Key) -> int | None:
        """Return a lower bound of the key time of the first record with a key above ``after``, in
        epoch milliseconds; None: there is no such record. It may be too early (the start of a
        slot), never too late.
        """

    def latest_unmarked(self, record_id: bytes, below: int) -> Key | None:
        """Return the key of the record of an id that was appended last, if it is neither marked nor
        pruned; None: there is no such record. The time of a look-up does not depend on the number
        of the id's earlier records.

        Args:
            record_id: the ``delay-id``.
            below: exclusive upper bound of the result's source offset, at least S.
        """

    def marked_from(self, mark: int) -> list[tuple[int, Key]]:
        """Return ``(mark, key)`` of every stored record whose mark (source offset of its canceller)
        is ``mark`` or above, ascending. ``mark`` must not be below H of any earlier ``prune``.
        """

    def scanner(self, *, for_repair: bool = False) -> Scanner:
        """Return a reader that works in small steps; the store may change between two steps.

        With ``for_repair``, a ``SlotDamagedError`` names what is best read again from the log at
        once: several damaged slots in a row, or a part of a large one. Otherwise it names one whole
        slot, for callers that skip damage.
        """

    def rebuild(self, start_ms: int, stop_ms: int, frames: Sequence[Frame]) -> None:
        """Replace the records with keys in ``[start_ms, stop_ms)``, epoch milliseconds, by
        ``frames``: records with their marks, read again from the log after a ``SlotDamagedError``,
        or because the copies of other nodes differ.
        """

    def prune(self, cursor: Cursor) -> None:
        """Delete what the committed ``cursor`` has settled, now or in later calls: records with key
        <= K and offset < H, records with a key time below that of K (those with offsets from H on
        are read again from the log), records with a mark below H, and these marks. All other
        records are kept, so a file of many keys goes only when the end of its keys is at most that
        of K.
        """

    def sync(self, *, wait: bool = True) -> int:
        """Make everything appended so far durable, and return the durable horizon, a source offset.

        Args:
            wait: if False, a store that can starts a sync and returns at once. The horizon then
                moves during a later call of any method; calls of ``sync`` with ``wait=False``
                before that have no effect.

        Raises:
            StoreError: an fsync failed, in this call or an earlier one. The process must exit,
                because the kernel may have dropped the unwritten pages.
        """

    def reset(self) -> None:
        """Delete all records and the label, and set the horizon to 0, because the log no longer
        agrees with the store.
        """

    def close(self) -> None:
        """Sync, and close all files."""


class StoreView(Protocol):
    """Store as people, digests, checks and repairs read it; no method changes a record."""

    def latest_unmarked(self, record_id: bytes, below: int) -> Key | None:
        """Return the key of an id's latest record that is not cancelled, replaced or fired, and has
        an offset below ``below``; None: there is no such record.
        """

    def scanner(self) -> Scanner:
        """Return a reader that works in small steps; the store may change between two steps."""

    def lumps(self, start_ms: int, stop_ms: int) -> list[Lump]:
        """Return counts of the stored records with keys in ``[start_ms, stop_ms)``, epoch
        milliseconds, each ``(start_ms, stop_ms, count)`` for a part of the range. The parts are as
        small as is cheap; the first and the last may reach beyond the range. Settled records that
        are not pruned yet are included; marked records are included in parts wider than one
        millisecond only.

        Raises:
            StoreError: the store can't be read.
        """

    @property
    def census(self) -> Census | None:
        """Return counts of the pending records by target topic and due time; None: they are not
        kept, or not known yet.
        """
        return None

    def stats(self) -> StoreStats:
        """Return number of records, bytes and horizon of the store. Cheap enough for a call each
        second.
        """


class Store(DeliveryStore, StoreView, Protocol):
    """Store of the pending records of one shard, for delivery and for people and checks."""
