"""RocksDB for the RocksDB store and the wheel's id index: options, the mark of a clean close, and
workarounds for rocksdict.

RocksDB does not notice the loss of a write-ahead log if a newer one exists, nor of tables if the
MANIFEST has lost its end. So the stores note how many rows a shard has, and count them when they
open a database that was not closed by ``mark_closed``.

Found by tests of rocksdict 0.3.29:

- An iterator ignores ``iterate_lower_bound``, or stops at once with it. So every scan states its
  lower end as ``from_key`` and its upper end as ``iterate_upper_bound``. The lower end is never
  among pruned rows, because RocksDB is slow to pass rows that a range deletion covers.
- ``items`` and ``keys`` end at a damaged block without an error. So the end of a scan is checked.
- A closed or damaged database raises bare ``Exception``.
- Synced writes hold the GIL. So writes are unsynced and ``flush_wal`` makes them durable.
- Opening a database with a damaged MANIFEST may never end (a record of type 5). So a database is
  marked as damaged while it is being opened.
"""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from errno import EACCES, EDQUOT, EMFILE, ENFILE, ENOMEM, ENOSPC, EPERM, EROFS
from functools import cache
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final

import structlog
from rocksdict import (
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

from delayservice.base.errors import StoreDamagedError, StoreError
from delayservice.store.files import make_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = structlog.get_logger(__name__)

CONDEMNED = "DAMAGED"
# A byte for each opening in a row whose process ended before it: RocksDB 9.8 waits for ever at a
# record of the MANIFEST whose type is damaged, until the supervisor kills the worker. One may have
# been killed for another reason.
OPENING = "OPENING"
_UNENDED_MAX: Final = 2
_NUMBER: Final = Struct(">I")
_SEQUENCE: Final = Struct(">Q")
# Row key of ``mark_closed``: number 0, which no shard has, and ``c``.
_CLOSED: Final = b"\0\0\0\0c"
_SCAN_ROWS: Final = 10_000
_END: Final = b"\xff" * 5
# Phrases of error messages, of RocksDB and of the system, for causes other than damaged files.
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
    # Whether table files are merged in the background; not in a snapshot, whose files are links.
    compacts: bool = True


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
    native.set_disable_auto_compactions(not options.compacts)
    return native


def open_database(path: Path, options: RocksOptions) -> Rdict:
    """Open or create the database in folder ``path``. The caller holds the lock of the store's
    folder.

    Raises:
        StoreError: the database was found damaged before.
        Exception: the database is damaged, or can't be opened (rocksdict has no narrower class).
    """
    opening = path / OPENING
    unended = len(opening.read_bytes()) if opening.exists() else 0
    if (path / CONDEMNED).exists() or unended >= _UNENDED_MAX:
        raise StoreError(f"the database {path} was found damaged; it must be rebuilt")
    make_folder(path)
    with suppress(OSError), opening.open("ab") as file:
        file.write(b".")
    try:
        database = Rdict(str(path), _to_native(options, _shared_cache(options.block_cache_bytes)))
    finally:
        opening.unlink(missing_ok=True)
    write = WriteOptions()
    write.sync = False
    database.set_write_options(write)
    return database


def was_closed(database: Rdict) -> bool:
    """Return whether nothing was written since ``mark_closed``, and so all rows are there."""
    return database.get(_CLOSED) == _SEQUENCE.pack(database.latest_sequence_number())


def mark_closed(database: Rdict) -> None:
    """Note durably that all rows were written; call this last before closing the database."""
    if not was_closed(database):
        database.put(_CLOSED, _SEQUENCE.pack(database.latest_sequence_number() + 1))
        database.flush_wal(sync=True)


def snapshot_database(source: Path, target: Path) -> None:
    """Fill the folder ``target`` with the present state of a database that may be open: links to
    its table files, which never change, and copies of the others. If a table file is removed
    meanwhile, opening the snapshot raises an error.
    """
    make_folder(target)
    # The MANIFEST first: it names no table that is not there when it is read.
    for file in sorted(source.iterdir(), key=lambda file: not _is_manifest(file)):
        if file.suffix == ".sst":
            (target / file.name).symlink_to(file.resolve())
        elif _is_manifest(file) or file.suffix == ".log" or file.name == CONDEMNED:
            shutil.copyfile(file, target / file.name)


def _is_manifest(file: Path) -> bool:
    return file.name == "CURRENT" or file.name.startswith("MANIFEST-")


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
        if not is_damage(error):
            raise StoreError(f"can't {self._deed} {self._what}: {error}") from error
        condemn(self._database)  # the next open puts it aside and starts over
        raise StoreDamagedError(
            f"can't {self._deed} {self._what}: {error}; restart the service: what is damaged is "
            "put aside and rebuilt from Kafka"
        ) from error


def prefix_of(number: int) -> bytes:
    return _NUMBER.pack(number)


def number_of(key: bytes) -> int:
    return int(_NUMBER.unpack_from(key)[0])


def numbers_in(database: Rdict) -> Iterator[int]:
    """Yield the numbers, from 1 on, with which keys begin."""
    number = 1
    while keys := read_keys(database, prefix_of(number), _END, 1):
        number = number_of(keys[0])
        yield number
        number += 1


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


def all_keys(database: Rdict, start: bytes, stop: bytes) -> Iterator[list[bytes]]:
    """Yield all row keys with ``start <= key < stop``, some at a time; raises as ``read_rows``."""
    while keys := read_keys(database, start, stop, _SCAN_ROWS):
        yield keys
        start = keys[-1] + b"\0"


def count_keys(database: Rdict, start: bytes, stop: bytes) -> int:
    """Return the number of rows with ``start <= key < stop``; raises as ``read_rows``."""
    return sum(map(len, all_keys(database, start, stop)))


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
