"""A store with the digest of what it holds: told of everything that the store is told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from delayservice.core.codec import decode_payload
from delayservice.core.cursor import OFFSET_MAX, Cursor, Key
from delayservice.core.digest import SLOT_MS, ShardDigest
from delayservice.core.digest_rows import Unreadable
from delayservice.core.far import FarDues
from delayservice.core.times import DUE_STOP_MS
from delayservice.errors import SlotDamagedError
from delayservice.store.base import NO_MARK, Frame, Lump, Mark, Named, Scanner, Store, StoreStats

if TYPE_CHECKING:
    from collections.abc import Callable

SCAN_ROWS: Final = 4_096
"""Read in one turn of a scan: as many as a block of the wheel has."""

_END: Final[Key] = (DUE_STOP_MS, OFFSET_MAX)


class DigestingStore(Store):
    """Hands everything on to another store, and keeps its digest.

    Args:
        inner: the store.
        on_close: told when the store is closed.
        far_from_ms: keys below are no roll times of what is stored now, epoch milliseconds.

    Attributes:
        digest: of what is pending in it.
        damaged: what the last scan could not read.
        wants_scan: some of the store was rebuilt since the last scan began.
    """

    def __init__(
        self,
        inner: Store,
        on_close: Callable[[], None] = lambda: None,
        far_from_ms: Callable[[], int] = lambda: DUE_STOP_MS,
    ) -> None:
        self.inner = inner
        self.digest = ShardDigest(0)
        self._far_from_ms = far_from_ms
        self._far = FarDues()
        self._making_far = FarDues()
        self.damaged: list[Unreadable] = []
        self.wants_scan = False
        self.cursor: Cursor | None = None
        """The newest that it was pruned by; None before the first."""
        self._on_close = on_close
        self._scanner: Scanner | None = None
        self._scan_after: Key | None = None
        self._found: list[Unreadable] = []

    # --- digest --------------------------------------------------------------------------------

    @property
    def is_scanning(self) -> bool:
        """Whether a scan has begun and not ended."""
        return self._scan_after is not None

    @property
    def may_scan(self) -> bool:
        """Whether what is on the disk is what belongs there: not while what was stored after the
        last sync of an earlier life is read again, for what it marks may be pruned already.
        """
        return self.cursor is not None and self.digest.stored >= self.cursor.offset

    def begin_scan(self) -> None:
        """Make the digest anew of what the disk holds; one that is under way begins anew."""
        self.digest.begin()
        self._scan_after = (0, 0)
        self._scanner = None
        self._making_far = FarDues()
        self._found = []
        self.wants_scan = False

    def scan_on(self) -> bool:
        """Read a little further; whether the scan has ended with that. What can't be read is noted
        and left as it is: whoever delivers it mends it, or a repair.
        """
        after = self._scan_after
        if after is None:
            raise AssertionError("no scan has begun")
        if self._scanner is None:
            self._scanner = self.inner.scanner()
        rows, upto, damage = self._scanner.read_on(after, _END, SCAN_ROWS)
        if damage is not None:
            self._found.append(_damage_of(damage))
        self._take_scanned(rows, upto)
        ended = upto == _END
        self._scan_after = None if ended else upto
        if ended:
            self.damaged = self._found
            self._scanner = None
            self._far = self._making_far
        return ended

    def _take_scanned(self, rows: Sequence[Frame], upto: Key) -> None:
        named: list[tuple[Frame, bytes | None]] = []
        for row in rows:
            payload = decode_payload(row[3])
            named.append((row, None if payload[6] is None else payload[6][0]))
            if payload[5] > row[0] and row[2] == NO_MARK:
                self._making_far.add(row[0], payload[5])
        self.digest.scanned(named, upto)

    # --- store ---------------------------------------------------------------------------------

    def open(self) -> int:
        """See ``Store.open``."""
        stored = self.inner.open()
        self.digest = ShardDigest(stored)
        return stored

    @property
    def label(self) -> bytes:
        """See ``Store.label``."""
        return self.inner.label

    def set_label(self, label: bytes) -> None:
        """See ``Store.set_label``."""
        self.inner.set_label(label)

    def append(
        self,
        frames: Sequence[Frame],
        named: Sequence[Named],
        marks: Sequence[Mark],
        stop_offset: int,
    ) -> None:
        """See ``Store.append``."""
        self.inner.append(frames, named, marks, stop_offset)
        self.digest.store(frames, named, marks, stop_offset)
        self._note_far(frames)

    def _note_far(self, frames: Sequence[Frame]) -> None:
        """Only what has a key as far away as a roll time is unpacked: few in most clusters."""
        far_ms, scanned = self._far_from_ms(), self._scan_after
        for key_ms, offset, _, packed in frames:
            if key_ms >= far_ms:
                due_ms = decode_payload(packed)[5]
                if due_ms > key_ms:
                    self._far.add(key_ms, due_ms)
                    if scanned is not None and (key_ms, offset) <= scanned:
                        self._making_far.add(key_ms, due_ms)

    def read_due(self, after: Key, upto_ms: int, limit: int) -> list[Frame]:
        """See ``Store.read_due``."""
        return self.inner.read_due(after, upto_ms, limit)

    def next_due_ms(self, after: Key) -> int | None:
        """See ``Store.next_due_ms``."""
        return self.inner.next_due_ms(after)

    def rebuild(self, start_ms: int, stop_ms: int, frames: Sequence[Frame]) -> None:
        """See ``Store.rebuild``. What the last scan could not read is missing in its sums, so the
        damage stands until the next scan.
        """
        self.inner.rebuild(start_ms, stop_ms, frames)
        self.wants_scan = True
        if self.is_scanning:
            self.begin_scan()

    def latest_unmarked(self, record_id: bytes, below: int) -> Key | None:
        """See ``Store.latest_unmarked``."""
        return self.inner.latest_unmarked(record_id, below)

    def marked_from(self, mark: int) -> list[tuple[int, Key]]:
        """See ``Store.marked_from``."""
        return self.inner.marked_from(mark)

    def prune(self, cursor: Cursor) -> None:
        """See ``Store.prune``."""
        self.inner.prune(cursor)
        self.cursor = cursor
        self._far.pass_key(cursor.key[0])

    def sync(self) -> int:
        """See ``Store.sync``."""
        return self.inner.sync()

    def sync_soon(self) -> None:
        """See ``Store.sync_soon``."""
        self.inner.sync_soon()

    def scan(self, after: Key, upto_ms: int) -> Iterator[Frame]:
        """See ``Store.scan``."""
        return self.inner.scan(after, upto_ms)

    def scanner(self) -> Scanner:
        """See ``Store.scanner``."""
        return self.inner.scanner()

    def lumps(self, start_ms: int, stop_ms: int) -> list[Lump]:
        """See ``Store.lumps``: by the minute where there are sums, else as the other store has it.
        What is cancelled does not count there. What has a roll time for its key is counted where it
        is due, which corrects the lump of its key by a negative one.
        """
        return [*self._key_lumps(start_ms, stop_ms), *self._far.lumps(start_ms, stop_ms)]

    def _key_lumps(self, start_ms: int, stop_ms: int) -> list[Lump]:
        summed = self.digest.counts()
        if summed is None:
            return self.inner.lumps(start_ms, stop_ms)
        from_ms = max(start_ms, self.digest.from_ms)
        found = [
            (slot_ms, slot_ms + SLOT_MS, count)
            for slot_ms, count in summed.items()
            if count > 0 and slot_ms + SLOT_MS > from_ms and slot_ms < stop_ms
        ]
        if start_ms < self.digest.from_ms:
            found += self.inner.lumps(start_ms, min(stop_ms, self.digest.from_ms))
        return found

    def stats(self) -> StoreStats:
        """See ``Store.stats``."""
        return self.inner.stats()

    def reset(self) -> None:
        """See ``Store.reset``."""
        self.inner.reset()
        self.digest.reset()
        self._far = FarDues()
        self.wants_scan = False
        self.damaged = []
        self._scan_after = None

    def close(self) -> None:
        """See ``Store.close``."""
        self._on_close()
        self.inner.close()


def _damage_of(error: SlotDamagedError) -> Unreadable:
    return Unreadable(
        error.start_ms, error.stop_ms, error.first_offset, error.stop_offset, str(error)
    )
