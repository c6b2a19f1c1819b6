"""Readers of the RocksDB store of a running node or a backup, which see its state at one moment,
and the check of one shard: all its rows are read, and so all blocks that hold them.

No file in the folder is locked or written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from struct import Struct
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from delayservice.base.errors import StoreError
from delayservice.contract.codec import decode_payload
from delayservice.contract.times import DUE_STOP_MS
from delayservice.engine.cursor import NO_MARK
from delayservice.store import findings
from delayservice.store.findings import CheckVerdict, Finding, NamedRecord, check_ids
from delayservice.store.folder import Format, ShardFolder, read_format, unreadable
from delayservice.store.ids import IDS_OPTIONS, IdRows
from delayservice.store.rocks import CONDEMNED, RocksOptions, all_rows, guarded_read, open_to_read
from delayservice.store.rocksdb import DATABASE, FORMAT, RocksDatabase, RocksStore, ShardName

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from rocksdict import Rdict

    from delayservice.store.base import Frame


class ViewedDatabase(RocksDatabase):
    """Database of a running node or a backup, opened without a lock; nothing is written to it but
    ``view``, an empty folder that is filled with links to the database's files.
    """

    def __init__(self, path: Path, view: Path) -> None:
        # All table files are opened at once, so that no file is missing while rows are read.
        super().__init__(path, RocksOptions(open_files_max=-1))
        self._view = view

    def open(self) -> None:
        """Open the database in its present state, unless it is open, and read the state of its
        shards.
        """
        if self._database is not None:
            return
        found, needed = read_format(str(self._path)), Format("rocksdb", FORMAT)
        if found is None:
            raise StoreError(f"{self._path} is no folder of a store, or its VERSION is damaged")
        if found != needed:
            raise StoreError(f"{self._path} holds '{found}', and this reads '{needed}'")
        with self.guard("open"):
            self._database = open_to_read(self._database_path, self.options, self._view)
            self._fill()

    def _add(self, place: ShardName) -> int:
        raise StoreError(f"{self._path} holds no shard {place[0]}/{place[1]}")

    def close(self) -> None:
        self._release()

    def guard(self, deed: str) -> AbstractContextManager[None]:
        del deed
        return guarded_read(self.what)


class RocksView(RocksStore):
    """Store of one shard in a database that was opened for reading, with access to all its rows."""

    @property
    def stop_offset(self) -> int:
        return self._stop_offset

    @property
    def records(self) -> int:
        # As the database states it; it is not counted.
        return self._count

    @property
    def ids(self) -> IdRows:
        return self._ids

    def rows(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the shard's rows with ``start <= key < stop``, in order; the number of the shard is
        left out of all these keys. The checksums of the blocks that are read are verified.
        """
        prefix = self._prefix
        with self._rocks.guard("read"):
            for row, value in all_rows(self._db, prefix + start, prefix + stop):
                yield row[len(prefix) :], value


@contextmanager
def viewed_database(path: Path) -> Iterator[ViewedDatabase]:
    """Open a worker's database for reading, in its present state, without a lock.

    Raises:
        StoreError: the folder has no database of this format, or the database is damaged.
    """
    with TemporaryDirectory() as view:
        rocks = ViewedDatabase(path, Path(view))
        try:
            rocks.open()
            yield rocks
        finally:
            rocks.close()


@contextmanager
def viewed_store(shard: ShardFolder) -> Iterator[RocksView]:
    """Open a shard's store for reading; raises as ``viewed_database``, or if it lacks the shard."""
    with viewed_database(Path(shard.path)) as rocks:
        yield view_of(rocks, shard)


def view_of(rocks: ViewedDatabase, shard: ShardFolder) -> RocksView:
    store = RocksView(rocks, shard.shard, shard.partition)
    store.open()
    return store


@contextmanager
def viewed_ids(path: str) -> Iterator[Rdict]:
    """Open a wheel's id database for reading; raises as ``viewed_database``."""
    with TemporaryDirectory() as view:
        with guarded_read(f"the ids {path}"):
            database = open_to_read(Path(path), replace(IDS_OPTIONS, open_files_max=-1), Path(view))
        try:
            yield database
        finally:
            database.close()


_KNOWN: Final = frozenset({"LOCK", "VERSION", DATABASE, "quarantine"})
_HOUR_MS: Final = 3_600_000
_FIRST_ROW, _LAST_ROW = b"\0", b"\xff" * 8
_KEY: Final = Struct(">xqq")
_RECORD_BYTES: Final = _KEY.size


def verify_rocks(
    shard: ShardFolder, now_ms: Callable[[], int], on_progress: Callable[[int, int], None]
) -> CheckVerdict:
    """Check one shard of a worker's database, and return the findings. With the first shard of the
    database, the names of the files in the folder are checked too.

    Args:
        shard: the shard and its folder; the folder's VERSION was checked already.
        now_ms: returns the present time, epoch milliseconds; records due by then may have been
            settled.
        on_progress: takes the number of checked records, and the number of all records.
    """
    path = Path(shard.path)
    database = path / DATABASE
    _check_rights(database)
    check = _RocksCheck(now_ms, on_progress)
    if (database / CONDEMNED).exists():
        what = "a node met damage in it and left a note of that"
        check.found.append(Finding(findings.DATABASE, what, f"{DATABASE}/{CONDEMNED}"))
    places: list[ShardName] = []
    try:
        with viewed_database(path) as rocks:
            places = rocks.places
            if shard.shard:  # an empty database has no shard
                check.run(view_of(rocks, shard))
    except StoreError as exc:
        has_any = any(database.glob("*"))
        case = findings.DATABASE if has_any else findings.START_OVER
        check.found.append(Finding(case, str(exc), DATABASE))
    is_first = places[:1] in ([], [(shard.shard, shard.partition)])
    found = [*check.found, *(_check_names(path) if is_first else ())]
    found.sort(key=lambda finding: not finding.case.is_damage)
    return CheckVerdict(check.stop_offset, check.records, check.bytes, tuple(found))


def _check_rights(database: Path) -> None:
    # A lack of rights is not damage, so it must not become a finding.
    if not database.is_dir():
        return
    try:
        for file in database.iterdir():
            with file.open("rb"):
                pass
    except FileNotFoundError:
        return  # a running node may remove files meanwhile
    except PermissionError as exc:
        raise unreadable(exc.filename, exc) from exc


def _check_names(path: Path) -> Iterator[Finding]:
    for name in sorted(entry.name for entry in path.iterdir()):
        if name not in _KNOWN:
            yield Finding(findings.STRAY, "no file or folder of a store is called so", name)
    aside = list((path / "quarantine").glob("*"))
    if aside:
        what = f"{len(aside)} damaged databases were set aside by a node"
        yield Finding(findings.SET_ASIDE, what, "quarantine")


class _RocksCheck:
    def __init__(self, now_ms: Callable[[], int], on_progress: Callable[[int, int], None]) -> None:
        self.found: list[Finding] = []
        self.stop_offset = self.records = self.bytes = 0
        self._now_ms = now_ms
        self._on_progress = on_progress

    def run(self, store: RocksView) -> None:
        # All other rows are read too, so that the checksums of all blocks are verified.
        self.stop_offset = store.stop_offset
        self._check_records(store)
        if self.records != store.records:
            what = f"it holds {self.records} records, and says that it holds {store.records}"
            self.found.append(Finding(findings.INCONSISTENT, what, DATABASE))
        for _ in store.rows(_FIRST_ROW, b"f"):
            pass
        for _ in store.rows(b"g", _LAST_ROW):
            pass

    def _check_records(self, store: RocksView) -> None:
        # Ids hour by hour of key times, so that only the ids of one hour are in memory.
        hour_ms, named = 0, dict[int, NamedRecord]()
        for frame in _frames(store):
            if frame[0] >= hour_ms + _HOUR_MS:
                self._check_ids(store, hour_ms, named, frame[0] - frame[0] % _HOUR_MS)
                hour_ms, named = frame[0] - frame[0] % _HOUR_MS, {}
            self._take(frame, named)
        self._check_ids(store, hour_ms, named, DUE_STOP_MS)

    def _take(self, frame: Frame, named: dict[int, NamedRecord]) -> None:
        key_ms, offset, mark, payload = frame
        self.records += 1
        self.bytes += len(payload)
        why = "" if offset < self.stop_offset else f"it is not below S, {self.stop_offset}"
        try:
            meta = decode_payload(payload)[6]
        except StoreError as exc:
            why, meta = str(exc), None
        if why:
            span, offsets = (key_ms, key_ms + 1), (offset, offset + 1)
            what = f"the record at offset {offset}: {why}"
            self.found.append(Finding(findings.INCONSISTENT, what, DATABASE, span, offsets))
        if meta is not None and meta[0] is not None:
            named[offset] = NamedRecord(meta[0], key_ms, mark)

    def _check_ids(
        self, store: RocksView, hour_ms: int, named: dict[int, NamedRecord], stop_ms: int
    ) -> None:
        self._on_progress(self.records, store.records)
        span_ms = (max(hour_ms, self._now_ms()), stop_ms)
        if span_ms[0] < span_ms[1]:
            with guarded_read("the ids"):
                self.found += check_ids(store.ids, span_ms, named, self.stop_offset, DATABASE)


def _frames(store: RocksView) -> Iterator[Frame]:
    # The row of a mark follows that of its record.
    last: Frame | None = None
    for row, value in store.rows(b"f", b"g"):
        key_ms, offset = _KEY.unpack_from(row)
        if len(row) == _RECORD_BYTES:
            if last is not None:
                yield last
            last = (key_ms, offset, NO_MARK, value)
        elif last is not None and last[:2] == (key_ms, offset):
            last = (*last[:2], int.from_bytes(value, "big"), last[3])
    if last is not None:
        yield last
