"""Store interfaces: pending records of one shard, in key order.

``DeliveryStore`` is what delivery, checks and repairs use; ``Store`` adds figures.

A store is a cache of the Kafka log. It may lose the records appended last in a crash: ``open``
returns the horizon, an offset, and the caller reads the log again from there. Records are plain
tuples, because millions of them are handled (``bench whole``)::

    Frame   (key_ms, offset, mark, payload)   a pending record; mark -1: not marked
    Named   (id, key_ms, offset, group)       a record that has a delay-id
    Mark    (id, key_ms, offset, mark)        the record with this key is settled by offset ``mark``
    Sighting  (seen_by, key_ms, offset)       offset ``seen_by`` found this key's record pending
    Group   (target, due hour, is parked)     what ``engine.census`` counts together

``docs/glossary.md`` explains key, mark, K, H and S. A key is ``(key_ms, offset)``; all times are
epoch milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from delayservice.base.errors import SlotDamagedError
from delayservice.contract.entry import OFFSET_MAX
from delayservice.engine.census import Census
from delayservice.engine.cursor import (
    NO_MARK,
    Cursor,
    Frame,
    Group,
    Key,
    Mark,
    Named,
    Sighting,
)

__all__ = [
    "NO_MARK",
    "DeliveryStore",
    "Frame",
    "Group",
    "Mark",
    "Named",
    "Sighting",
    "Store",
]

_SCAN_ROWS: Final = 1_000


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Figures of a store. ``pending`` is the number of records with keys above K of the last
    ``prune``, with marked ones, and perhaps some that were settled within seconds before K;
    ``bytes`` is approximate; ``durable_offset`` is the durable horizon, a source offset.
    """

    pending: int
    bytes: int
    durable_offset: int


class Scanner:
    """Reader of a store in small steps; the store may change between two steps.

    ``read`` is a function ``(after, upto_ms, limit)`` like ``Store.read_due``, which does not
    change the rows that delivery holds in memory.
    """

    def __init__(self, read: Callable[[Key, int, int], list[Frame]]) -> None:
        self.read = read

    def frames(self, after: Key, upto_ms: int) -> Iterator[Frame]:
        """Yield all records with keys above ``after`` and a key time up to ``upto_ms``, inclusive,
        in epoch ms, in key order. Raises the errors of ``Store.read_due``.
        """
        while rows := self.read(after, upto_ms, _SCAN_ROWS):
            yield from rows
            after = rows[-1][:2]

    def read_on(
        self, after: Key, upto: Key, limit: int
    ) -> tuple[list[Frame], Key, SlotDamagedError | None]:
        """Read the next records with keys above ``after`` and key times up to that of ``upto``; the
        offset in ``upto`` does not limit them. Damaged ranges are returned, and not raised.

        Returns:
            ``(records, key, damage)``: at most ``limit`` records in key order; the key to pass as
            ``after`` in the next call, ``upto`` or higher if the range has been read; and None, or
            the damaged range that begins right above ``after``. With damage, there are no records,
            and ``key`` is the end of the damaged range.

        Raises:
            StoreError: the store can't be read.
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
        """Open the store, and return its durable horizon, a source offset, which is also S now.
        Unsettled records with lower offsets are stored, or reads report them as damaged. Records
        from the horizon on are invisible until they are appended again. The horizon is 0 if the
        store is new, or starts empty because its files are damaged or of another format.

        Raises:
            StoreError: the store is open already, is of another kind or a newer format, or can't be
                opened.
        """

    @property
    def label(self) -> bytes:
        """Bytes that state the contracts and cluster secrets by which the records below S were
        read; ``b""``: there is no label. After a crash, ``open`` restores label and horizon of the
        same moment, so an old label never comes with newer records.
        """

    def set_label(self, label: bytes) -> None:
        """Replace the label. It is durable with the next sync at the latest; a crash before that
        restores the last durable label and horizon. So the new label must be true of every stored
        record, or the caller resets the store first.
        """

    def append(
        self,
        frames: Sequence[Frame],
        named: Sequence[Named],
        marks: Sequence[Mark],
        stop_offset: int,
        sightings: Sequence[Sighting] = (),
    ) -> None:
        """Add the records and marks that the log holds from S, inclusive, to ``stop_offset``,
        exclusive (the new S), in offset order. Reads see them at once; a later sync makes them
        durable.

        ``named`` are those records in ``frames`` that have an id; ``marks`` are of each record that
        is cancelled, replaced or fired. A record is marked once. ``sightings`` of a record do not
        change it.

        Raises:
            StoreError: the disk is full or fails.
        """

    def read_due(self, after: Key, upto_ms: int, limit: int) -> list[Frame]:
        """Return at most ``limit`` records with ``after < (key_ms, offset)`` and ``key_ms <=
        upto_ms``, epoch milliseconds, in key order. Marked records are included, with their marks.

        Raises:
            SlotDamagedError: the first of these records are missing or damaged; call ``rebuild``,
                and read again.
            StoreError: the store can't be read.
        """

    def next_due_ms(self, after: Key) -> int | None:
        """Return a lower bound of the key time of the first record with a key above ``after``, in
        epoch milliseconds; None: there is no such record. It may be too early (the start of a
        slot), never too late.
        """

    def latest_unmarked(self, record_id: bytes, below: int) -> Key | None:
        """Return the key of the record of an id that was appended last; None: there is no record of
        this id, or the last one is marked, pruned, or not below ``below``, an exclusive bound of
        the source offset that is at least S. The time of a look-up does not depend on the number of
        the id's earlier records.
        """

    def group_of(self, record_id: bytes) -> Group | None:
        """Return the group, as appended, of the record of an id that was appended last; None as for
        ``latest_unmarked``.
        """

    def marked_from(self, mark: int) -> list[tuple[int, Key]]:
        """Return ``(mark, key)`` of every stored record whose mark (source offset of its canceller)
        is ``mark`` or above, ascending; records that were pruned may be among them. ``mark`` must
        not be below H of any earlier ``prune``.
        """

    def sighted_from(self, seen_by: int) -> list[tuple[int, Key]]:
        """Return ``(seen_by, key)`` of every sighting from this source offset on, ascending; the
        same holds as for ``marked_from``.
        """

    def scanner(self, *, for_repair: bool = False) -> Scanner:
        """Return a reader that works in small steps; the store may change between two steps.

        With ``for_repair``, its ``SlotDamagedError`` states as much as is best read again from the
        log at once: several damaged slots in a row, or a part of a large one. Otherwise it states
        all that is damaged in one slot, for callers that skip damage.
        """

    def rebuild(self, start_ms: int, stop_ms: int, frames: Sequence[Frame]) -> None:
        """Replace the records with keys in ``[start_ms, stop_ms)``, epoch milliseconds, by those of
        ``frames`` in this range. The caller has read ``frames`` (records with their marks) again
        from the log, after a ``SlotDamagedError``, or because the copies of other nodes differ. The
        id index is not changed.
        """

    def prune(self, cursor: Cursor) -> None:
        """Delete, now or in later calls, what the committed ``cursor`` ``(K, H)`` allows: records
        with key <= K and offset < H, records with a mark below H, these marks, and records with a
        key time below that of K (those with offsets from H on are read again from the log). No
        other record is deleted. So a file of many keys is deleted only when all its key times are
        below that of K.
        """

    def sync(self, *, wait: bool = True) -> int:
        """Make everything appended so far durable, and return the durable horizon, a source offset.

        Args:
            wait: False: start a sync and return at once, if the store is able to. The horizon then
                moves during a later call of any method; calls of ``sync`` with ``wait=False``
                before that have no effect.

        Raises:
            StoreError: an fsync failed, in this call or an earlier one. The process must exit,
                because the kernel may have dropped the unwritten pages.
        """

    def reset(self) -> None:
        """Delete all records, ids, marks and the label, and set S and the horizon to 0."""

    def close(self) -> None:
        """Close the store. What was appended is made durable, at the latest with the next sync of
        the worker's other shards.
        """


class Store(DeliveryStore, Protocol):
    """Store of the pending records of one shard, with its figures."""

    @property
    def census(self) -> Census | None:
        """Counts of the pending records by target topic and due time; None: not kept, or not known
        yet.
        """
        return None

    def stats(self) -> StoreStats:
        """Return the store's figures; cheap enough for one call each second."""
