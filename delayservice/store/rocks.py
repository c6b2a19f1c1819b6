"""RocksDB for the RocksDB store and the wheel's id index: options, workarounds for rocksdict, and a
check that MANIFEST and write-ahead logs are whole, which RocksDB omits when it opens a database.

Found by tests of rocksdict 0.3.29:

- An iterator ignores ``iterate_lower_bound``, or stops at once with it. So every scan states its
  lower end as ``from_key`` and its upper end as ``iterate_upper_bound``. The lower end is never
  among pruned rows, because RocksDB is slow to pass rows that a range deletion covers.
- ``items`` and ``keys`` end at a damaged block without an error. So the end of a scan is checked.
- A closed or damaged database raises bare ``Exception``.
- Synced writes hold the GIL. So writes are unsynced and ``flush_wal`` makes them durable.
"""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from errno import EACCES, EDQUOT, EMFILE, ENFILE, ENOMEM, ENOSPC, EPERM, EROFS
from functools import cache
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import google_crc32c
import structlog
from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
    WriteBufferManager,
    WriteOptions,
)

from delayservice.base.errors import StoreError
from delayservice.store.files import make_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocksdict import WriteBatch

_BLOCK_BYTES: Final = 32 << 10
_HEAD: Final = Struct("<IHB")
_MASK_DELTA: Final = 0xA282EAD8
_U32: Final = 0xFFFFFFFF
# Types of a record of the MANIFEST: a whole one, and the first and last part of a divided one.
_FULL, _FIRST, _LAST = 1, 2, 4
# Tags of the fields with which a record of the MANIFEST begins: two texts (comparator, database
# id), and the number of the oldest log that is still needed.
_COMPARATOR, _LOG_NUMBER, _DATABASE_ID = 1, 2, 8193
# Row key of ``ManifestGuard``: number 0, which no shard has, and ``w``.
_ROW: Final = b"\0\0\0\0w"
_MORE: Final = 0x80
_GUARDED: Final = Struct(">QQQ")


class Manifest(NamedTuple):
    """State of a database's files before it is opened: number and size of the MANIFEST, number of
    the oldest write-ahead log that is needed (older ones are in tables), and the existing logs.

    The MANIFEST lists the valid tables. It is a log of records in blocks of 32 KiB::

        crc u32, length u16, type u8        little endian; crc32c of type and content, masked
        content                             length bytes

    If a record reaches beyond the end of the file, RocksDB assumes that a crash cut it off, and
    ignores everything from there on. So a damaged length can hide tables, while the newer
    write-ahead log still contains the horizon. RocksDB also accepts a MANIFEST that was cut between
    two records, and a missing write-ahead log if a newer one exists: see ``ManifestGuard``. Source:
    https://github.com/facebook/rocksdb/wiki/Write-Ahead-Log-File-Format and, for the content,
    ``VersionEdit::EncodeTo`` in https://github.com/facebook/rocksdb/blob/main/db/version_edit.cc
    """

    number: int
    size: int
    log_number: int
    logs: frozenset[int]


def read_manifest(database: Path) -> Manifest | None:
    """Read the MANIFEST that is in use, check that it is whole, and return what it and the existing
    write-ahead logs state; None: there is no file CURRENT, so the database is new, or RocksDB will
    refuse it. Checksums are checked too, because RocksDB 9.8 hangs at a record whose type was
    changed to 5.

    Raises:
        StoreError: the MANIFEST is damaged.
        OSError: the MANIFEST is missing.
    """
    if not (database / "CURRENT").exists():
        return None
    path = _manifest_of(database)
    data = path.read_bytes()
    log_number, edit = 0, b""
    for kind, content in _parts(path, data):
        edit = content if kind in {_FULL, _FIRST} else edit + content
        if kind in {_FULL, _LAST}:
            log_number = max(log_number, _log_number(edit))
    logs = frozenset(int(log.stem) for log in database.glob("*.log"))
    return Manifest(_number_of(path), len(data), log_number, logs)


def _manifest_of(database: Path) -> Path:
    return database / (database / "CURRENT").read_text("ascii", "replace").strip()


def _number_of(manifest: Path) -> int:
    number = manifest.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def _parts(path: Path, data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _HEAD.size <= len(data):
        block_left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if block_left < _HEAD.size:
            at += block_left
            continue
        crc, length, kind = _HEAD.unpack_from(data, at)
        content = data[at + _HEAD.size : at + block_left]
        if length > len(content) or (kind == 0 and length == 0):
            _check_cut(path, crc, kind, content)
            return
        if (
            _masked(google_crc32c.extend(google_crc32c.value(bytes([kind])), content[:length]))
            != crc
        ):
            raise StoreError(f"{path} is damaged: the checksum of a record is wrong")
        yield kind, content[:length]
        at += _HEAD.size + length


def _check_cut(path: Path, crc: int, kind: int, content: bytes) -> None:
    # The length in the last record's header is wrong. If its checksum fits a part of the rest of
    # the block, the length is damaged; otherwise a crash cut the record off.
    found = google_crc32c.value(bytes([kind]))
    for number in range(len(content) + 1):
        if _masked(found) == crc:
            raise StoreError(f"{path} is damaged: the length of a record is wrong")
        found = google_crc32c.extend(found, content[number : number + 1])


def _masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & _U32


def _log_number(edit: bytes) -> int:
    # 0: the record does not mention logs.
    at = 0
    while at < len(edit):
        tag, at = _varint(edit, at)
        if tag not in {_COMPARATOR, _LOG_NUMBER, _DATABASE_ID}:
            return 0
        value, at = _varint(edit, at)
        if tag == _LOG_NUMBER:
            return value
        at += value  # the length of a text
    return 0


def _varint(data: bytes, at: int) -> tuple[int, int]:
    # Seven bits per byte; returned with the index of the byte after it.
    value = shift = 0
    while at < len(data):
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & _MORE:
            break
    return value, at


class ManifestGuard:
    """Writer of a row that each batch of a database contains, and that states the files at that
    time: number and size of the MANIFEST, and number of the oldest write-ahead log that was needed.

    By this row, the loss of a table or a log is detected when the database is opened, if a batch
    was written after the MANIFEST listed the file. The loss is missed only after a crash between
    the end of a flush and the next batch.
    """

    def __init__(self, path: Path, database: Rdict) -> None:
        self._path = path
        self._database = database
        self._size = -1
        self._row = b""
        self._find_manifest()

    def _find_manifest(self) -> None:
        manifest = _manifest_of(self._path)
        self._manifest, self._number = str(manifest), _number_of(manifest)

    def put(self, batch: WriteBatch) -> None:
        try:
            size = os.stat(self._manifest).st_size  # noqa: PTH116 - for each batch
        except FileNotFoundError:  # it was full, and there is a new one
            self._find_manifest()
            size = os.stat(self._manifest).st_size  # noqa: PTH116
        if size != self._size:
            self._size = size
            # What is needed of the logs changes with the MANIFEST only.
            needed = self._database.property_int_value("rocksdb.min-log-number-to-keep") or 0
            logs = [int(log.stem) for log in self._path.glob("*.log")]
            oldest = min([log for log in logs if log >= needed], default=0)
            self._row = _GUARDED.pack(self._number, size, oldest)
        batch.put(_ROW, self._row)


def check_manifest_guard(database: Rdict, found: Manifest | None) -> None:
    """Compare the row of ``ManifestGuard`` in an open database with the files found before it was
    opened; raises ``OSError`` if the end of the MANIFEST or a needed write-ahead log is missing. A
    database without this row passes.
    """
    row = database.get(_ROW)
    if row is None or found is None:
        return
    number, size, oldest_log = _GUARDED.unpack(row)
    if found.number < number or (found.number == number and found.size < size):
        raise OSError(f"MANIFEST-{found.number:06d} has lost its end, or a newer one is lost")
    if oldest_log not in {0, *found.logs} and oldest_log >= found.log_number:
        raise OSError(f"the write-ahead log {oldest_log:06d} is lost, and there is a newer one")


_log = structlog.get_logger(__name__)

CONDEMNED = "DAMAGED"
_NUMBER: Final = Struct(">I")
_SCAN_ROWS: Final = 10_000
_VIEWS_MAX = 3
# Phrases of RocksDB's error messages for causes other than damaged files.
_NO_DAMAGE: Final = (
    *map(os.strerror, (ENOSPC, EDQUOT, EMFILE, ENFILE, ENOMEM, EACCES, EPERM, EROFS)),
    "DB already closed",
)


@dataclass(frozen=True, slots=True)
class RocksOptions:
    """Options of one database of RocksDB, for all its shards together; sizes are in bytes."""

    # Size of a memory table; two may exist.
    write_buffer_bytes: int = 8 << 20
    # Total size of memory tables above which they are flushed early; shared by all databases of the
    # process with the same value.
    write_buffers_bytes: int = 64 << 20
    # Size of the block cache; shared by all databases of the process with the same value.
    block_cache_bytes: int = 32 << 20
    # Size of a block on disk before compression.
    block_bytes: int = 16 << 10
    # Size of a table file.
    target_file_bytes: int = 32 << 20
    # Total size of the table files of level 1.
    level_base_bytes: int = 128 << 20
    # Size of the write-ahead log at which memory tables are flushed.
    wal_bytes_max: int = 32 << 20
    # Largest number of table files kept open; -1: all.
    open_files_max: int = 64
    # Number of threads for flush and compaction.
    background_jobs: int = 2
    # Kind of compression of table files: ``none``, ``snappy``, ``lz4`` or ``zstd``.
    compression: str = "lz4"
    # Size of a table's filter in bits per row; the filter spares searches for rows that do not
    # exist. 0: no filter.
    bloom_bits: int = 0
    # Bytes written since the last sync, which a crash would lose, at which the store syncs before
    # it writes more.
    sync_bytes: int = 64 << 20
    # Seconds after which a shard that is not open is removed, because another node or worker has
    # its slice now.
    unused_s: float = 3_600.0


@cache
def _shared_cache(size: int) -> Cache:
    return Cache(size)


@cache
def _shared_buffers(size: int) -> WriteBufferManager:
    return WriteBufferManager(size, allow_stall=False)


def _to_native(options: RocksOptions, block_cache: Cache) -> Options:
    table = BlockBasedOptions()
    table.set_block_cache(block_cache)
    table.set_block_size(options.block_bytes)
    table.set_cache_index_and_filter_blocks(True)
    table.set_format_version(5)
    if options.bloom_bits:
        table.set_bloom_filter(options.bloom_bits, block_based=False)
    native = Options(raw_mode=True)  # the default mode unpickles what it reads
    native.create_if_missing(True)  # noqa: FBT003 - so it is in rocksdict
    native.set_paranoid_checks(True)
    native.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    native.set_block_based_table_factory(table)
    native.set_compression_type(getattr(DBCompressionType, options.compression)())
    native.set_write_buffer_size(options.write_buffer_bytes)
    native.set_max_write_buffer_number(2)
    native.set_write_buffer_manager(_shared_buffers(options.write_buffers_bytes))
    native.set_target_file_size_base(options.target_file_bytes)
    native.set_max_bytes_for_level_base(options.level_base_bytes)
    native.set_max_total_wal_size(options.wal_bytes_max)
    native.set_max_open_files(options.open_files_max)
    native.set_max_background_jobs(options.background_jobs)
    native.set_keep_log_file_num(2)
    native.set_max_log_file_size(1 << 20)
    native.set_recycle_log_file_num(0)
    native.set_stats_dump_period_sec(0)
    native.set_is_fd_close_on_exec(True)
    return native


def open_database(path: Path, options: RocksOptions) -> Rdict:
    """Open or create the database in folder ``path``. The caller holds the lock of the store's
    folder.

    Raises:
        StoreError: the database was found damaged before, or its MANIFEST is damaged.
        Exception: the database is damaged, or can't be opened (rocksdict has no narrower class).
    """
    if (path / CONDEMNED).exists():
        raise StoreError(f"the database {path} was found damaged; it must be rebuilt")
    make_folder(path)
    found = read_manifest(path)
    database = Rdict(str(path), _to_native(options, _shared_cache(options.block_cache_bytes)))
    try:
        check_manifest_guard(database, found)
    except BaseException:
        database.close()
        raise
    write = WriteOptions()
    write.sync = False
    database.set_write_options(write)
    return database


def open_to_read(path: Path, options: RocksOptions, view: Path) -> Rdict:
    """Open the present state of the database for reading, with its write-ahead log, without a lock.

    rocksdict writes a file beside every database that it opens. So the empty folder ``view`` is
    filled with links to the database's files and a copy of its MANIFEST, and is opened instead. If
    a running node removes a file meanwhile, this is tried again.
    """
    for number in range(1, _VIEWS_MAX):
        with suppress(Exception):
            return _open_view(path, options, view / str(number))
    return _open_view(path, options, view / str(_VIEWS_MAX))


def _open_view(path: Path, options: RocksOptions, view: Path) -> Rdict:
    view.mkdir()
    for source in sorted(path.iterdir(), key=lambda file: not _is_manifest(file)):
        if _is_manifest(source):
            shutil.copyfile(source, view / source.name)
        elif source.suffix in {".sst", ".log"}:
            (view / source.name).symlink_to(source.resolve())
    read_manifest(view)
    # A separate cache: a shared one may hold a good block that is damaged on the disk by now.
    native = _to_native(options, Cache(options.block_cache_bytes))
    native.create_if_missing(False)  # noqa: FBT003 - so it is in rocksdict
    access = AccessType.read_only(error_if_log_file_exist=False)
    return Rdict(str(view), native, access_type=access)


def _is_manifest(file: Path) -> bool:
    return file.name == "CURRENT" or file.name.startswith("MANIFEST-")


@contextmanager
def guarded_read(what: str) -> Iterator[None]:
    """Raise errors of RocksDB, in a database opened for reading, as ``StoreError``."""
    try:
        yield
    except StoreError:
        raise
    except Exception as exc:
        raise StoreError(
            f"can't read {what}: {exc}; if a node has it open, read a backup or try again; if it "
            "is damaged, its node puts it aside and rebuilds it from Kafka"
        ) from exc


def condemn(path: Path) -> None:
    """Mark the database as damaged: ``open_database`` refuses it from now on."""
    marker = path / CONDEMNED
    with suppress(OSError), marker.open("wb") as file:  # if that fails, the damage is met again
        os.fsync(file.fileno())


def is_damage(error: Exception) -> bool:
    # Other causes, such as lack of space, memory or rights, may be gone at the next start.
    return not any(cause in str(error) for cause in _NO_DAMAGE)


class Guarded:
    """Context that raises errors of RocksDB as ``StoreError``; if an error may mean damage, the
    database is marked as damaged, and the next start makes a new one. It is a class and not a
    generator for speed, because each look-up of an id enters it.
    """

    __slots__ = ("_database", "_deed", "_what")

    def __init__(self, deed: str, what: str, database: Path) -> None:
        self._deed = deed
        self._what = what
        self._database = database

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, StoreError):
            return
        if is_damage(error):
            condemn(self._database)  # the next open puts it aside and starts over
        raise StoreError(
            f"can't {self._deed} {self._what}: {error}; restart the service: what is damaged is "
            "put aside and rebuilt from Kafka"
        ) from error


def prefix_of(number: int) -> bytes:
    return _NUMBER.pack(number)


def number_of(key: bytes) -> int:
    return int(_NUMBER.unpack_from(key)[0])


class Reclaimer:
    """Thread that frees the disk space of removed shards by compaction. RocksDB alone frees it only
    when other rows are written in the same key range.
    """

    def __init__(self, database: Path) -> None:
        self._path = database
        self._executor: ThreadPoolExecutor | None = None

    def reclaim(self, database: Rdict, number: int) -> None:
        """Start to free the disk space of a shard whose rows were deleted, and return at once."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "store-reclaim")
        self._executor.submit(self._compact, database, number)

    def _compact(self, database: Rdict, number: int) -> None:
        try:
            database.compact_range(prefix_of(number), prefix_of(number + 1))
        except Exception as exc:  # noqa: BLE001 - rocksdict raises no narrower class
            _log.error("space_not_reclaimed", path=str(self._path), number=number, why=str(exc))
            if is_damage(exc):
                condemn(self._path)

    def close(self) -> None:
        """Wait until all compactions have ended. The caller closes the database after this."""
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None


def close_database(database: Rdict, path: Path) -> None:
    """Close the database in folder ``path``. Rows that can't be flushed stay in its write-ahead
    log; if damage is found while closing, the database is marked as damaged.
    """
    try:
        database.close()
    except Exception as exc:  # noqa: BLE001 - rocksdict raises no narrower class
        if is_damage(exc):
            condemn(path)


def read_rows(database: Rdict, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
    """Return at most ``limit`` rows with ``start <= key < stop``; raises if one can't be read."""
    rows = database.items(from_key=start, read_opt=_upto(stop))
    found: list[tuple[bytes, bytes]] = list(islice(rows, limit))  # type: ignore[arg-type]
    if len(found) < limit:
        _check_end(database, found[-1][0] + b"\0" if found else start, stop)
    return found


def all_rows(database: Rdict, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield all rows with ``start <= key < stop``; raises if one can't be read."""
    while found := read_rows(database, start, stop, _SCAN_ROWS):
        yield from found
        start = found[-1][0] + b"\0"


def read_keys(database: Rdict, start: bytes, stop: bytes, limit: int) -> list[bytes]:
    """Return at most ``limit`` row keys with ``start <= key < stop``; raises as ``read_rows``."""
    keys = database.keys(from_key=start, read_opt=_upto(stop))
    found: list[bytes] = list(islice(keys, limit))  # type: ignore[arg-type]
    if len(found) < limit:
        _check_end(database, found[-1] + b"\0" if found else start, stop)
    return found


def _upto(stop: bytes) -> ReadOptions:
    bounds = ReadOptions()
    bounds.set_iterate_upper_bound(stop)
    return bounds


def _check_end(database: Rdict, start: bytes, stop: bytes) -> None:
    # ``items`` and ``keys`` end at a damaged block without an error, so no row may be left here.
    rows = database.iter(_upto(stop))
    rows.seek(start)
    rows.status()
    if rows.valid():
        raise OSError(f"a scan ended before the row {rows.key()!r}")
