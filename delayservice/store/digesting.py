"""Wrapper of a store that also keeps the digest and the census (counts by target and due time) of
the records.

Both are in memory, and are updated as records are appended and settled. A scan reads all records
from the disk in small steps and makes both anew: first after the store was opened, then from time
to time, so that a difference between disk and digest is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from delayservice.base.errors import SlotDamagedError
from delayservice.contract.codec import decode_payload
from delayservice.contract.entry import OFFSET_MAX
from delayservice.contract.times import DUE_STOP_MS
from delayservice.engine.census import MINUTE_MS, Census
from delayservice.engine.cursor import Cursor, Key
from delayservice.replicas.digest import NEAR_MINUTES, ShardDigest
from delayservice.replicas.digest_rows import Unreadable
from delayservice.store.base import CountRange, Frame, Mark, Named, Scanner, Store

if TYPE_CHECKING:
    from collections.abc import Callable

# Largest number of records read in one step of a scan, as in one block of the wheel.
SCAN_ROWS: Final = 4_096

# ``lumps`` uses the counts of the inner store for so many minutes at the start of a range, or from
# the minute of K on if that is later: in the minute of K, the census includes settled records.
_FINE_MINUTES: Final = 4
_END: Final[Key] = (DUE_STOP_MS, OFFSET_MAX)


class DigestingStore:
    """Store that passes all calls to another store, and keeps the digest and the census (counts by
    target and due time) of the stored records.
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
        # Key ranges that the last complete scan could not read.
        self.damaged: list[Unreadable] = []
        # Whether ``rebuild`` has replaced records since the last scan began.
        self.wants_scan = False
        # Cursor of the last ``prune``.
        self.cursor: Cursor | None = None
        self._on_close = on_close
        # These calls change neither digest nor census, and reading is too frequent to forward.
        self.set_label, self.sync = inner.set_label, inner.sync
        self.read_due, self.next_due_ms = inner.read_due, inner.next_due_ms
        self.latest_unmarked, self.marked_from = inner.latest_unmarked, inner.marked_from
        self.scanner, self.stats = inner.scanner, inner.stats
        self._scanner: Scanner | None = None
        self._scan_after: Key | None = None
        self._found: list[Unreadable] = []

    def near(self, from_ms: int) -> int:
        """Return the approximate number of pending records that a digest from the minute
        ``from_ms`` on leaves out: those from the minute of K, which counts as a whole. 0: the
        census or K is unknown.
        """
        if self.cursor is None or self.census is None:
            return 0
        k_minute_ms = self.cursor.key[0] // MINUTE_MS * MINUTE_MS
        first_ms = max(k_minute_ms, from_ms - (NEAR_MINUTES + 1) * MINUTE_MS)
        return sum(map(self._census.in_minute, range(first_ms, from_ms, MINUTE_MS)))

    # --- digest --------------------------------------------------------------------------------

    @property
    def is_scanning(self) -> bool:
        return self._scan_after is not None

    @property
    def may_scan(self) -> bool:
        """Whether a scan may begin: S has reached H of the last pruned cursor. Before that, the log
        is read again after a crash, and marks that are appended again may be for pruned records.
        """
        return self.cursor is not None and self.digest.stored >= self.cursor.offset

    def begin_scan(self) -> None:
        """Start a scan that makes a new digest and census; a scan under way starts again."""
        self.digest.begin()
        self._scan_after = (0, 0)
        self._scanner = None
        self._making_census = Census()
        self._found = []
        self.wants_scan = False

    def scan_on(self) -> bool:
        """Read the next records of the scan, and return whether the scan has ended; if so, the
        census and ``damaged`` are replaced, and the caller has to call ``digest.finish``. Damaged
        key ranges are noted and not repaired; delivery or a repair rebuilds them.
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
        stored = self.inner.open()
        self.digest = ShardDigest(stored)
        return stored

    @property
    def label(self) -> bytes:
        return self.inner.label

    def append(
        self,
        frames: Sequence[Frame],
        named: Sequence[Named],
        marks: Sequence[Mark],
        stop_offset: int,
    ) -> None:
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
        # Only a scan can update digest, census and ``damaged``.
        self.inner.rebuild(start_ms, stop_ms, frames)
        self.wants_scan = True
        if self.is_scanning:
            self.begin_scan()

    def prune(self, cursor: Cursor) -> None:
        self.inner.prune(cursor)
        self.cursor = cursor
        self._pass_key()

    def _pass_key(self) -> None:
        if self.cursor is not None:
            self._census.pass_key(self.cursor.key[0])

    @property
    def census(self) -> Census | None:
        return None if self.digest.sums is None else self._census

    def lumps(self, start_ms: int, stop_ms: int) -> list[CountRange]:
        # The first minutes have the counts of the inner store, later ones those of the census: one
        # for each minute, each second of parked records, and the hour or day of records due beyond
        # the roll window; negative ones subtract cancelled records.
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
        self.inner.reset()
        self.digest.reset()
        self._census, self._making_census = Census(), None
        self.wants_scan = False
        self.damaged = []
        self._scan_after = None

    def close(self) -> None:
        self._on_close()
        self.inner.close()


def _coarse(
    census: Census, fine: Sequence[CountRange], start_ms: int, stop_ms: int
) -> list[CountRange]:
    """Return one count for each minute of ``[start_ms, stop_ms)``, epoch ms, of the records in the
    census that are not in the counts ``fine``.
    """
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
