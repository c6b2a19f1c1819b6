"""The RocksDB store: records in key order, the horizon in the same write batch.

``docs/format-rocksdb.md`` has layout, invariants and recovery. Keys are big endian, so that byte
order is key order::

    'f' key_ms i64, offset i64       -> payload          a record
    'f' key_ms i64, offset i64, 1    -> mark i64         what marked it; follows its record
    'h'                              -> stop offset i64  the horizon of this very content
    'l'                              -> label            by what it was read
    'n', 'd', 'm'                                        ids, see ``delayservice.store.ids``

The write-ahead log of RocksDB gives back a prefix of the batches after a crash, and each batch
carries its stop offset; so horizon, label and content always agree.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

import structlog
from rocksdict import WriteBatch

from delayservice.core.cursor import OFFSET_MAX, Cursor, Key
from delayservice.errors import StoreError
from delayservice.store.base import NO_MARK, Frame, Lump, Mark, Named, Store, StoreStats
from delayservice.store.files import Files
from delayservice.store.folder import Format, StoreFolder
from delayservice.store.ids import IdRows
from delayservice.store.rocks import (
    Guarded,
    RocksOptions,
    close_database,
    guarded_read,
    is_damage,
    open_database,
    open_to_read,
    read_keys,
    read_rows,
)
from delayservice.store.shards import read_format

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from rocksdict import Rdict

_log = structlog.get_logger(__name__)

FORMAT: Final = 3

_HORIZON = b"h"
_LABEL = b"l"
_COUNT = b"c"
_FRAMES_END = b"g"
_SLOT_MS = 1000
_LUMP_RECORDS = 50_000
_LUMP_MS = 600_000
_LUMPS_KEYS = 20_000
_REBUILT: Final = "the database is put aside, and the store is rebuilt from Kafka"
_I64 = Struct(">q")
_KEY = Struct(">cqq")
_KEY_TAIL = Struct(">xqq")
_KEY_BYTES: Final = 17
_MARK_SUFFIX = b"\x01"
_pack_key = _KEY.pack
_unpack_key = _KEY_TAIL.unpack


def _above(key: Key) -> bytes:
    """The lowest row that is above ``key`` and its mark."""
    if key[1] >= OFFSET_MAX:
        return _pack_key(b"f", max(key[0] + 1, 0), 0)
    return _pack_key(b"f", max(key[0], 0), max(key[1] + 1, 0))


class RocksStore(Store):
    """A shard's pending records in one RocksDB.

    Args:
        path: folder of this shard's store; nothing in it is named after a topic.
        options: options of the database.
    """

    def __init__(self, path: Path, options: RocksOptions | None = None) -> None:
        self._options = options or RocksOptions()
        self._files = Files()
        self._folder = StoreFolder(path, "rocksdb", FORMAT, self._files)
        self._path = path
        self._what = f"the store {path}"
        self._database_path = path / "db"
        self._database: Rdict | None = None
        self._clear(0, b"")

    def _clear(self, stop_offset: int, label: bytes) -> None:
        self._stop_offset = self._durable_offset = stop_offset
        self._label = label
        self._pruned_ms = self._deleted_ms = 0
        self._passed = 0
        """Records below ``_pruned_ms`` that were not deleted yet; ``_count`` includes them."""
        self._count = self._unsynced_bytes = 0

    # --- life ----------------------------------------------------------------------------------

    def open(self) -> int:
        """See ``Store.open``. A database that is damaged is put aside.

        Raises:
            StoreError: it does not open for want of space, memory, files or rights.
        """
        if not self._folder.enter():
            self.reset()
        elif not self._recover():
            self._start_over()
        return self._stop_offset

    def _recover(self) -> bool:
        if not (self._database_path).is_dir():
            return False
        try:
            return self._attach_filled(open_database(self._database_path, self._options))
        except Exception as exc:
            if not is_damage(exc):
                self.abandon()
                raise StoreError(f"can't open the store {self._path}: {exc}") from exc
            _log.error("store_damaged", path=str(self._path), why=str(exc), hint=_REBUILT)
            return False

    def _attach_filled(self, database: Rdict) -> bool:
        """Attach a database and take its horizon, label and count; whether it has them."""
        self._attach(database)
        horizon, count = database.get(_HORIZON), database.get(_COUNT)
        if horizon is None or count is None:
            return False
        self._clear(int(_I64.unpack(horizon)[0]), bytes(database.get(_LABEL) or b""))
        self._count = int(_I64.unpack(count)[0])
        return True

    def _attach(self, database: Rdict) -> None:
        self._database = database
        self._ids = IdRows(database)

    def _start_over(self) -> None:
        self._release()
        if self._files.exists(str(self._database_path)):
            self._folder.quarantine(str(self._database_path), "db")
        self._attach(open_database(self._database_path, self._options))
        self._clear(0, b"")
        self._folder.stamp()
        self._files.sync_dir(str(self._path))

    @property
    def label(self) -> bytes:
        """See ``Store.label``."""
        return self._label

    def set_label(self, label: bytes) -> None:
        """See ``Store.set_label``: a batch of its own, before all that is read by it."""
        batch = WriteBatch(raw_mode=True)
        batch.put(_LABEL, label)
        self._write(batch, self._stop_offset)
        self._label = label

    def reset(self) -> None:
        """See ``Store.reset``."""
        self._release()
        self._files.remove_tree(str(self._database_path))
        self._start_over()

    def close(self) -> None:
        """See ``Store.close``."""
        try:
            self.sync()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Release every handle without a sync."""
        self._release()
        self._files.close()
        self._folder.leave()

    def _release(self) -> None:
        if self._database is not None:
            close_database(self._database, self._database_path)
            self._database = None

    @property
    def _db(self) -> Rdict:
        if self._database is None:
            raise StoreError(f"the store {self._path} is not open; open it first")
        return self._database

    # --- store ---------------------------------------------------------------------------------

    def append(
        self,
        frames: Sequence[Frame],
        named: Sequence[Named],
        marks: Sequence[Mark],
        stop_offset: int,
    ) -> None:
        """See ``Store.append``: one batch, written and not synced, but for every
        ``sync_bytes``.
        """
        if self._unsynced_bytes >= self._options.sync_bytes:
            self.sync()
        batch = WriteBatch(raw_mode=True)
        self._put_frames(batch, frames)
        for _, key_ms, offset, mark in marks:
            if key_ms >= self._pruned_ms:  # else its record is not read again, and may be deleted
                batch.put(_pack_key(b"f", key_ms, offset) + _MARK_SUFFIX, _I64.pack(mark))
        if named or marks:
            with self._guard("read"):
                self._ids.put(batch, named, marks)
        self._count += len(frames)
        self._unsynced_bytes += batch.size_in_bytes()
        self._write(batch, stop_offset)
        self._stop_offset = stop_offset

    def _put_frames(self, batch: WriteBatch, frames: Sequence[Frame]) -> None:
        put, pack = batch.put, _pack_key
        for key_ms, offset, mark, payload in frames:
            put(pack(b"f", key_ms, offset), payload)
            if mark != NO_MARK:
                put(pack(b"f", key_ms, offset) + _MARK_SUFFIX, _I64.pack(mark))

    def _write(self, batch: WriteBatch, stop_offset: int) -> None:
        batch.put(_HORIZON, _I64.pack(stop_offset))
        batch.put(_COUNT, _I64.pack(self._count))
        with self._guard("write"):
            self._db.write(batch)

    def _guard(self, deed: str) -> AbstractContextManager[None]:
        return Guarded(deed, self._what, self._database_path)

    # --- due -----------------------------------------------------------------------------------

    def read_due(self, after: Key, upto_ms: int, limit: int) -> list[Frame]:
        """See ``Store.read_due``.

        Raises:
            StoreError: the database is damaged; it is put aside when the store is opened again.
        """
        start = _above(max(after, (self._pruned_ms, -1)))
        stop = _above((upto_ms, OFFSET_MAX))
        with self._guard("read"):
            found = read_rows(self._db, start, stop, limit)
            if all([len(key) == _KEY_BYTES for key, _ in found]):  # noqa: C419 - twice as fast
                return self._with_last_mark(found)
            # Twice the rows hold the limit's records, for each is followed by one mark at most.
            rows = read_rows(self._db, start, stop, 2 * limit)
        # Nothing but marks whose records were pruned: look behind them.
        return self._with_marks(rows, limit) or self.read_due(
            _unpack_key(rows[-1][0][:_KEY_BYTES]), upto_ms, limit
        )

    def _with_last_mark(self, rows: list[tuple[bytes, bytes]]) -> list[Frame]:
        frames = [(*_unpack_key(key), NO_MARK, value) for key, value in rows]
        if rows:
            mark = self._db.get(rows[-1][0] + _MARK_SUFFIX)
            if mark is not None:
                frames[-1] = (*frames[-1][:2], _I64.unpack(mark)[0], frames[-1][3])
        return frames

    @staticmethod
    def _with_marks(rows: list[tuple[bytes, bytes]], limit: int) -> list[Frame]:
        found: list[Frame] = []
        for key, value in rows:
            if len(key) == _KEY_BYTES:
                if len(found) == limit:
                    break
                found.append((*_unpack_key(key), NO_MARK, value))
            elif found and found[-1][:2] == _unpack_key(key[:-1]):
                found[-1] = (*found[-1][:2], _I64.unpack(value)[0], found[-1][3])
        return found

    def next_due_ms(self, after: Key) -> int | None:
        """See ``Store.next_due_ms``; exact but for a mark whose record is gone."""
        start = _above(max(after, (self._pruned_ms, -1)))
        with self._guard("read"):
            found = read_keys(self._db, start, _FRAMES_END, 1)
        return int(_I64.unpack(found[0][1:9])[0]) if found else None

    def scan(self, after: Key, upto_ms: int) -> Iterator[Frame]:
        """See ``Store.scan``."""
        while found := self.read_due(after, upto_ms, 1000):
            yield from found
            after = found[-1][:2]

    def rebuild(self, start_ms: int, stop_ms: int, frames: Sequence[Frame]) -> None:
        """See ``Store.rebuild``."""
        batch = WriteBatch(raw_mode=True)
        batch.delete_range(_pack_key(b"f", start_ms, 0), _pack_key(b"f", stop_ms, 0))
        self._put_frames(batch, [frame for frame in frames if start_ms <= frame[0] < stop_ms])
        self._write(batch, self._stop_offset)

    # --- ids -----------------------------------------------------------------------------------

    def latest_unmarked(self, record_id: bytes, below: int) -> Key | None:
        """See ``Store.latest_unmarked``."""
        with self._guard("read"):
            return self._ids.latest_unmarked(record_id, min(below, self._stop_offset))

    def marked_from(self, mark: int) -> list[tuple[int, Key]]:
        """See ``Store.marked_from``."""
        with self._guard("read"):
            return self._ids.marked_from(mark, self._stop_offset)

    # --- prune and sync ------------------------------------------------------------------------

    def prune(self, cursor: Cursor) -> None:
        """See ``Store.prune``: nothing below K's second is read again, and it is deleted in large
        lumps, because every range tombstone costs every reader (``tests.store_bench --case days``).
        """
        stop_ms = cursor.key[0] // _SLOT_MS * _SLOT_MS
        batch = WriteBatch(raw_mode=True)
        with self._guard("read"):
            self._prune(batch, cursor, stop_ms)
        if not batch.is_empty():
            self._write(batch, self._stop_offset)

    def _prune(self, batch: WriteBatch, cursor: Cursor, stop_ms: int) -> None:
        if stop_ms > self._pruned_ms:
            start, stop = _pack_key(b"f", self._pruned_ms, 0), _pack_key(b"f", stop_ms, 0)
            self._passed += self._count_between(start, stop)
            self._pruned_ms = stop_ms
            if self._passed >= _LUMP_RECORDS or stop_ms - self._deleted_ms >= _LUMP_MS:
                self._delete_passed(batch)
        # Marks that are still to come have offsets from S on, wherever H is by now.
        self._ids.prune(batch, cursor.key[0], min(cursor.offset, self._stop_offset))

    def _delete_passed(self, batch: WriteBatch) -> None:
        if self._passed:
            start = _pack_key(b"f", self._deleted_ms, 0)
            batch.delete_range(start, _pack_key(b"f", self._pruned_ms, 0))
            self._count = max(0, self._count - self._passed)
            self._passed = 0
        self._deleted_ms = self._pruned_ms

    def _count_between(self, start: bytes, stop: bytes) -> int:
        count = 0
        while keys := read_keys(self._db, start, stop, 100_000):
            count += sum([len(key) == _KEY_BYTES for key in keys])
            start = keys[-1] + b"\0"
        return count

    def sync(self) -> int:
        """See ``Store.sync``."""
        self._write(WriteBatch(raw_mode=True), self._stop_offset)
        with self._guard("fsync"):
            self._db.flush_wal(sync=True)
        self._durable_offset = self._stop_offset
        self._unsynced_bytes = 0
        return self._durable_offset

    def lumps(self, start_ms: int, stop_ms: int) -> list[Lump]:
        """See ``Store.lumps``: exact for the first keys, and one lump for the rest, in which some
        from behind the range may be.
        """
        start_ms = max(start_ms, self._pruned_ms)
        start, stop = _pack_key(b"f", start_ms, 0), _pack_key(b"f", stop_ms, 0)
        with self._guard("read"):
            keys = read_keys(self._db, start, stop, _LUMPS_KEYS)
        times = [_unpack_key(key)[0] for key in keys if len(key) == _KEY_BYTES]
        found = [(key_ms, key_ms + 1, 1) for key_ms in times]
        if len(keys) == _LUMPS_KEYS and times[-1] + 1 < stop_ms:
            rest = max(self._count - self._passed - len(times), 0)
            found.append((times[-1] + 1, stop_ms, rest))
        return found

    def stats(self) -> StoreStats:
        """See ``Store.stats``."""
        sizes = ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")
        stored = sum(self._db.property_int_value(name) or 0 for name in sizes)
        oldest_ms = self.next_due_ms((self._pruned_ms, -1))
        return StoreStats(
            max(0, self._count - self._passed), stored, oldest_ms, self._durable_offset
        )


class RocksReader(RocksStore):
    """The database of a running node or a backup: no lock is taken and nothing is written.

    Args:
        path: folder of the shard's store.
        view: an empty folder for links to its files.
    """

    def __init__(self, path: Path, view: Path) -> None:
        # All table files are opened at once, so that none goes while it is read.
        super().__init__(path, RocksOptions(open_files_max=-1))
        self._view = view

    def open(self) -> int:
        """Open it as it is now, and return S.

        Raises:
            StoreError: there is none of this format, or it is damaged.
        """
        self._check_format()
        with self._guard("open"):
            found = open_to_read(self._database_path, self._options, self._view)
            if self._attach_filled(found):
                return self._stop_offset
        raise StoreError(f"{self._path} has no horizon: its node starts it over from the log")

    def _check_format(self) -> None:
        found, needed = read_format(str(self._path)), Format("rocksdb", FORMAT)
        if found is None:
            raise StoreError(f"{self._path} is no folder of a store, or its VERSION is damaged")
        if found != needed:
            raise StoreError(f"{self._path} holds '{found}', and this reads '{needed}'")

    def close(self) -> None:
        """Let go of it."""
        self._release()

    def _guard(self, deed: str) -> AbstractContextManager[None]:
        del deed
        return guarded_read(self._what)
