"""Store wrapper that keeps the digest and the census of the records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from delayservice.base.errors import SlotDamagedError
from delayservice.contract.codec import decode_payload
from delayservice.contract.entry import OFFSET_MAX
from delayservice.contract.times import DUE_STOP_MS
from delayservice.engine.census import MINUTE_MS, Census
from delayservice.engine.cursor import Cursor, Key
from delayservice.replicas.digest import NEAR_MS, ShardDigest
from delayservice.replicas.digest_rows import Unreadable
from delayservice.store.base import Frame, Lump, Mark, Named, Scanner, Store

if TYPE_CHECKING:
    from collections.abc import Callable

SCAN_ROWS: Final = 4_096
"""Most records read in one turn of a scan: as many as a block of the wheel has."""

_FINE_MINUTES: Final = 4
"""Minutes from K's on that are counted by the inner store. In K's own minute, the census includes
settled records."""
_END: Final[Key] = (DUE_STOP_MS, OFFSET_MAX)


class DigestingStore:
    """Store that passes all calls to another store, and keeps the digest and census of its records.

    Args:
        inner: the wrapped store.
        on_close: called when the store is closed.

    Attributes:
        digest: digest of the pending records.
        damaged: key ranges that the last scan could not read.
        wants_scan: whether part of the store was rebuilt since the last scan began.
    """

    def __init__(
        self,
        inner: Store,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self.inner = inner
        self.digest = ShardDigest(0)
        self._census = Census()
        self._making_census: Census | None = None
        self.damaged: list[Unreadable] = []
        self.wants_scan = False
        self.cursor: Cursor | None = None
        """Cursor of the last ``prune``; None before the first."""
        self._on_close = on_close
        # These calls change neither digest nor census, and reading is too frequent to forward.
        self.set_label, self.sync = inner.set_label, inner.sync
        self.read_due, self.next_due_ms = inner.read_due, inner.next_due_ms
        self.latest_unmarked, self.marked_from = inner.latest_unmarked, inner.marked_from
        self.scanner, self.stats = inner.scanner, inner.stats
        self._scanner: Scanner | None = None
        self._scan_after: Key | None = None
        self._found: list[Unreadable] = []

    @property
    def near(self) -> int:
        """Return about how many records from K on are in slots that the digest leaves out. The
        minute that K is in counts as a whole. 0 while the census is unknown.
        """
        if self.cursor is None or self.census is None:
            return 0
        stop_ms = self.digest.from_ms
        first_ms = max(self.cursor.key[0] // MINUTE_MS * MINUTE_MS, stop_ms - NEAR_MS)
        return sum(map(self._census.in_minute, range(first_ms, stop_ms, MINUTE_MS)))

    # --- digest --------------------------------------------------------------------------------

    @property
    def is_scanning(self) -> bool:
        """Return whether a scan is under way."""
        return self._scan_after is not None

    @property
    def may_scan(self) -> bool:
        """Return whether the disk may be compared with the digest. It may not while the log is read
        again after a crash: records that are marked again may be pruned already.
        """
        return self.cursor is not None and self.digest.stored >= self.cursor.offset

    def begin_scan(self) -> None:
        """Start a scan that makes the digest from the disk; a scan under way starts again."""
        self.digest.begin()
        self._scan_after = (0, 0)
        self._scanner = None
        self._making_census = Census()
        self._found = []
        self.wants_scan = False

    def scan_on(self) -> bool:
        """Do one step of the scan, and return whether it has ended. Damaged parts are noted and
        left as they are; delivery or a repair rebuilds them.
        """
        after = self._scan_after
        if after is None:
            raise AssertionError("no scan has begun")
        if self._scanner is None:
            self._scanner = self.inner.scanner()
        rows, upto, damage = self._scanner.read_on(after, _END, SCAN_ROWS)
        if damage is not None:
            self._found.append(_damage_of(damage))
        if self._making_census is not None:
            self._making_census.add(rows)
        metas = (decode_payload(row[3])[6] for row in rows)
        ids = [None if meta is None else meta[0] for meta in metas]
        self.digest.scanned(list(zip(rows, ids, strict=True)), upto)
        ended = upto == _END
        self._scan_after = None if ended else upto
        if ended:
            self.damaged = self._found
            self._scanner = None
            self._census, self._making_census = self._making_census or Census(), None
            self._pass_key()
        return ended

    # --- store ---------------------------------------------------------------------------------

    def open(self) -> int:
        """Recover, and return the durable horizon S; see ``Store.open``."""
        stored = self.inner.open()
        self.digest = ShardDigest(stored)
        return stored

    @property
    def label(self) -> bytes:
        """Return the label, which says how the records were read; see ``Store.label``."""
        return self.inner.label

    def append(
        self,
        frames: Sequence[Frame],
        named: Sequence[Named],
        marks: Sequence[Mark],
        stop_offset: int,
    ) -> None:
        """Add records and marks; ``stop_offset`` is the new S. See ``Store.append``."""
        self.inner.append(frames, named, marks, stop_offset)
        self.digest.store(frames, named, marks, stop_offset)
        self._take_census(frames, marks)

    def _take_census(self, frames: Sequence[Frame], marks: Sequence[Mark]) -> None:
        self._census.add(frames)
        for _, key_ms, _, _ in marks:
            self._census.cancel(key_ms)
        making, scanned = self._making_census, self._scan_after
        if making is not None and scanned is not None:  # the scan will read frames above
            making.add(frame for frame in frames if frame[:2] <= scanned)
            for _, key_ms, offset, _ in marks:
                if (key_ms, offset) <= scanned:
                    making.cancel(key_ms)

    def rebuild(self, start_ms: int, stop_ms: int, frames: Sequence[Frame]) -> None:
        """Replace the records of a key range; see ``Store.rebuild``. The digest lacks what the last
        scan could not read, so ``damaged`` stays until the next scan has ended.
        """
        self.inner.rebuild(start_ms, stop_ms, frames)
        self.wants_scan = True
        if self.is_scanning:
            self.begin_scan()

    def prune(self, cursor: Cursor) -> None:
        """Delete records that ``cursor`` has settled; see ``Store.prune``."""
        self.inner.prune(cursor)
        self.cursor = cursor
        self._pass_key()

    def _pass_key(self) -> None:
        if self.cursor is not None:
            self._census.pass_key(self.cursor.key[0])

    @property
    def census(self) -> Census | None:
        """Return counts by target and due time; None before the first scan has ended."""
        return None if self.digest.sums is None else self._census

    def lumps(self, start_ms: int, stop_ms: int) -> list[Lump]:
        """Return counts of the keys in a range; see ``Store.lumps``. The first minutes are as fine
        as in the inner store; the others are by the minute, and beyond the roll window by the hour
        or day. Cancelled records are left out once a scan has ended.
        """
        census = self.census
        if census is None:
            return self.inner.lumps(start_ms, stop_ms)
        k_ms = 0 if self.cursor is None else self.cursor.key[0]
        fine_ms = (max(start_ms, k_ms) // MINUTE_MS + _FINE_MINUTES) * MINUTE_MS
        fine_ms = min(fine_ms, stop_ms)
        near = self.inner.lumps(start_ms, fine_ms)
        fine = [lump for lump in near if lump[1] - lump[0] <= MINUTE_MS]
        found = fine + census.far_corrections(-(-start_ms // MINUTE_MS) * MINUTE_MS, fine_ms)
        if any(lump[1] - lump[0] > 1 for lump in fine[:1]):  # they include marked records
            found += census.cancelled(start_ms, fine_ms)
        if len(fine) < len(near):  # the store has only the sum of many minutes
            coarse_ms = max(min(set(near) - set(fine))[0], start_ms)
            found += _coarse(census, fine, coarse_ms, fine_ms)
        return found + census.lumps(fine_ms, stop_ms)

    def reset(self) -> None:
        """Delete all records and the label; see ``Store.reset``."""
        self.inner.reset()
        self.digest.reset()
        self._census, self._making_census = Census(), None
        self.wants_scan = False
        self.damaged = []
        self._scan_after = None

    def close(self) -> None:
        """Sync, and release every handle; see ``Store.close``."""
        self._on_close()
        self.inner.close()


def _coarse(census: Census, fine: Sequence[Lump], start_ms: int, stop_ms: int) -> list[Lump]:
    """Return counts by the minute from ``start_ms`` on, for records that ``fine`` leaves out."""
    found = []
    for minute_ms in range(start_ms // MINUTE_MS * MINUTE_MS, stop_ms, MINUTE_MS):
        end_ms = minute_ms + MINUTE_MS
        known = sum(count for start, _, count in fine if minute_ms <= start < end_ms)
        part = (end_ms - max(minute_ms, start_ms)) / MINUTE_MS
        rest = round((census.in_minute(minute_ms) - known) * part)
        if rest > 0:
            found.append((max(minute_ms, start_ms), end_ms, rest))
    return found


def _damage_of(error: SlotDamagedError) -> Unreadable:
    return Unreadable(
        error.start_ms, error.stop_ms, error.first_offset, error.stop_offset, str(error)
    )
