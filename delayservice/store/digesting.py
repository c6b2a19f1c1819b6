"""Wrapper of a store that also keeps the digest and the census (counts by target and due time) of
the records.

Both are in memory, and are updated as records are appended and settled. A scan reads all records
from the disk in small steps and makes both anew: first after the store was opened, then from time
to time, so that a difference between disk and digest is found.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from delayservice.contract.codec import decode_payload
from delayservice.contract.entry import OFFSET_MAX
from delayservice.contract.times import DUE_STOP_MS
from delayservice.engine.census import Census
from delayservice.engine.cursor import Cursor, Key
from delayservice.replicas.digest import ShardDigest
from delayservice.replicas.digest_rows import Damage
from delayservice.store.base import Frame, Group, Mark, Named, Scanner, Sighting, Store

if TYPE_CHECKING:
    from collections.abc import Callable

# Largest number of records read in one step of a scan, as in one block of the wheel.
SCAN_ROWS: Final = 4_096
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
        # Counts of the pending records; None: a scan has to end first.
        self.census: Census | None = Census()
        self._making_census: Census | None = None
        # Key ranges that the last complete scan could not read.
        self.damaged: list[Damage] = []
        # Whether ``rebuild`` has replaced records since the last scan began.
        self.wants_scan = False
        # Cursor of the last ``prune``.
        self.cursor: Cursor | None = None
        self._on_close = on_close
        # These calls change neither digest nor census, and reading is too frequent to forward.
        self.set_label, self.sync = inner.set_label, inner.sync
        self.read_due, self.next_due_ms = inner.read_due, inner.next_due_ms
        self.latest_unmarked, self.group_of = inner.latest_unmarked, inner.group_of
        self.marked_from, self.sighted_from = inner.marked_from, inner.sighted_from
        self.scanner, self.stats = inner.scanner, inner.stats
        self._scanner: Scanner | None = None
        self._scan_after: Key = (0, 0)
        self._found: list[Damage] = []

    @property
    def pending(self) -> int:
        """Number of pending records; with settled and marked ones while the census is unknown."""
        stored = self.inner.stats().pending
        return stored if self.census is None else self.census.pending(stored)

    # --- digest --------------------------------------------------------------------------------

    @property
    def is_scanning(self) -> bool:
        return self._making_census is not None

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
        making = self._making_census
        if making is None:
            raise AssertionError("no scan has begun")
        if self._scanner is None:
            self._scanner = self.inner.scanner()
        rows, upto, damage = self._scanner.read_on(self._scan_after, _END, SCAN_ROWS)
        if damage is not None:
            self._found.append(Damage.of(damage))
        making.add(rows)
        metas = (decode_payload(row[3])[6] for row in rows)
        ids = [None if meta is None else meta[0] for meta in metas]
        self.digest.scanned(list(zip(rows, ids, strict=True)), upto)
        self._scan_after = upto
        if upto != _END:
            return False
        self.damaged = self._found
        self._scanner = None
        self.census, self._making_census = making, None
        self._pass_key()
        return True

    # --- store ---------------------------------------------------------------------------------

    def open(self) -> int:
        stored = self.inner.open()
        self.digest = ShardDigest(stored)
        self.census = None if stored else Census()
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
        sightings: Sequence[Sighting] = (),
    ) -> None:
        cancelled = [] if not marks else self._cancelled(named, marks)
        self.inner.append(frames, named, marks, stop_offset, sightings)
        self.digest.store(frames, named, marks, stop_offset)
        self._count(self.census, frames, cancelled)
        if self.is_scanning:  # the scan will read what is above
            upto = self._scan_after
            frames = [frame for frame in frames if frame[:2] <= upto]
            self._count(self._making_census, frames, [c for c in cancelled if c[0] <= upto])

    @staticmethod
    def _count(
        census: Census | None, frames: Sequence[Frame], cancelled: Iterable[tuple[Key, Group]]
    ) -> None:
        if census is not None:
            census.add(frames)
            for (key_ms, _), group in cancelled:
                census.cancel(key_ms, group)

    # Before ``append``, while the id index still has the records that are marked.
    def _cancelled(self, named: Sequence[Named], marks: Sequence[Mark]) -> list[tuple[Key, Group]]:
        groups = {offset: group for _, _, offset, group in named}
        found = [
            ((key_ms, offset), groups.get(offset) or self.inner.group_of(record_id))
            for record_id, key_ms, offset, _ in marks
        ]
        return [(key, group) for key, group in found if group is not None]

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
        if self.cursor is not None and self.census is not None:
            self.census.pass_key(self.cursor.key[0])

    def reset(self) -> None:
        self.inner.reset()
        self.digest.reset()
        self.census, self._making_census = Census(), None
        self.wants_scan = False
        self.damaged = []

    def close(self) -> None:
        self._on_close()
        self.inner.close()
