"""The store interface: pending records of one shard, in key order.

A store is a cache of the Kafka log. It may lose any suffix of what it was given, as long as the
horizon that ``open`` returns says so; the caller reads the log again from there. Frames are plain
tuples because millions of them pass through (``bench whole`` pays for that).
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
    """Figures of a store for people and metrics; counts may include settled records
    that are not pruned yet.
    """

    pending: int
    bytes: int
    oldest_due_ms: int | None
    durable_offset: int


class Scanner:
    """See ``Store.scanner``.

    Args:
        scan: as ``Store.scan``.
    """

    def __init__(self, scan: Callable[[Key, int], Iterator[Frame]]) -> None:
        self._scan = scan

    def read(self, after: Key, upto_ms: int, limit: int) -> list[Frame]:
        """Read as ``Store.read_due`` does, but without touching what delivery has in memory."""
        return list(islice(self._scan(after, upto_ms), limit))

    def read_on(
        self, after: Key, upto: Key, limit: int
    ) -> tuple[list[Frame], Key, SlotDamagedError | None]:
        """The next rows above ``after``, the key up to which that is all there is, and the damage
        that lies right behind ``after``, if so: then there are no rows, and the key is behind it.
        """
        while True:
            try:
                rows = self.read(after, upto[0], limit)
            except SlotDamagedError as damage:
                before = (damage.start_ms - 1, OFFSET_MAX)
                if before > after:
                    upto = before  # what lies before it comes first
                    continue
                return [], (damage.stop_ms, -1), damage  # below the first key behind it
            return rows, rows[-1][:2] if rows else upto, None


class Store(ABC):
    """Pending records of one shard. Single-threaded: one slice loop owns it."""

    lumps_hold_marked: ClassVar[bool] = True
    """Whether marked records count in ``lumps``."""

    @abstractmethod
    def open(self) -> int:
        """Recover, and return the durable horizon S: everything of offsets below S is here (or is
        noticed to be missing), and nothing of S and above is visible until it is appended again.
        0 when the store is new, or its manifest is missing or damaged.
        """

    @property
    @abstractmethod
    def label(self) -> bytes:
        """Label of what the records below the stop offset were read by, in the owner's own words;
        ``b""`` when nothing says. Horizon and label that ``open`` finds are a pair that the store
        had at one moment: never a label from before a change with records from after it.
        """

    @abstractmethod
    def set_label(self, label: bytes) -> None:
        """Have ``label`` speak for all that was appended and for what will be; durable with the
        next sync at the latest. Until then the label before, with the horizon that it was durable
        with, is still true: the owner changes a label only to one that says the same of every
        record that is here, or resets the store first.

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
        """Take what offsets below ``stop_offset`` added, in offset order, all at or above the
        stop offset of the call before. Visible to reads at once; durable at some later sync.

        ``frames``: records to keep. ``named``: those of them that bear an id. ``marks``: earlier
        records (of this or earlier calls) that are cancelled or replaced; a record is marked once.
        Appending what an earlier life of the store already had is harmless (same offset, same
        content).
        """

    @abstractmethod
    def read_due(self, after: Key, upto_ms: int, limit: int) -> list[Frame]:
        """At most ``limit`` frames with ``after < (key_ms, offset)`` and ``key_ms <= upto_ms``, in
        key order. Marked frames are included with their mark: the caller decides.

        Raises:
            SlotDamagedError: frames in that range are missing or damaged. Asked again after
                ``rebuild``, it goes on.
        """

    @abstractmethod
    def next_due_ms(self, after: Key) -> int | None:
        """Return a lower bound of the ``key_ms`` of the first frame above ``after``; None: there is
        no such frame. It may be early (a slot's start), never late.
        """

    @abstractmethod
    def rebuild(self, start_ms: int, stop_ms: int, frames: Sequence[Frame]) -> None:
        """Replace what is stored for keys in ``[start_ms, stop_ms)`` by ``frames``, which were
        read again from the log, marks included: after a ``SlotDamagedError``, or because other
        copies hold something else.
        """

    @abstractmethod
    def latest_unmarked(self, record_id: bytes, below: int) -> Key | None:
        """Key of the record that this id stands for: the latest one appended that was not marked
        by then, until it is marked or pruned. Found in one step, whatever the id's history.

        Args:
            record_id: the id.
            below: the offset that asks, at or above the stop offset.
        """

    @abstractmethod
    def marked_from(self, mark: int) -> list[tuple[int, Key]]:
        """``(mark, key)`` of every kept record whose mark is ``mark`` or above, ascending; ``mark``
        is at or above H of every ``prune`` so far.
        """

    @abstractmethod
    def prune(self, cursor: Cursor) -> None:
        """Forget, in whatever lumps are cheap, what the committed ``cursor`` makes useless: frames
        with key <= K and offset < H, frames whose ``key_ms`` is below K's (those at or above H are
        walked again from the log), frames with a mark below H, and those marks. Never anything
        else: a slot goes as a whole only when its exclusive end is <= K's ``key_ms``.
        """

    @abstractmethod
    def sync(self) -> int:
        """Make everything appended so far durable and return the new horizon.

        Raises:
            StoreError: an fsync failed; the process must exit, for the page cache can't be trusted.
        """

    def sync_soon(self) -> None:
        """Sync as ``sync`` does, but without keeping the caller waiting if the store can help it:
        the horizon moves on in a later call of any kind. Asked again meanwhile, it does nothing
        more.

        Raises:
            StoreError: as ``sync``, here or in that later call.
        """
        self.sync()

    @abstractmethod
    def scan(self, after: Key, upto_ms: int) -> Iterator[Frame]:
        """Frames in key order without touching what delivery has in memory: for people and
        checks.
        """

    def scanner(self) -> Scanner:
        """Reads on from where it was, a little at a time, while the store goes on being used."""
        return Scanner(self.scan)

    @abstractmethod
    def lumps(self, start_ms: int, stop_ms: int) -> list[Lump]:
        """Count the keys in ``[start_ms, stop_ms)``, as finely as is known at little cost; the
        outer lumps may reach beyond the range. Settled records count that are not pruned yet, and
        marked ones if ``lumps_hold_marked``.

        Raises:
            StoreError: it can't be read.
        """

    @property
    def census(self) -> Census | None:
        """Counts by target and due time; None: they are not kept, or not known yet."""
        return None

    @abstractmethod
    def stats(self) -> StoreStats:
        """Cheap enough to be asked every second."""

    @abstractmethod
    def reset(self) -> None:
        """Forget everything, the label too, and start over from horizon 0: the log is not the one
        that was stored, or no longer agrees with it.
        """

    @abstractmethod
    def close(self) -> None:
        """``sync`` and release every handle."""
