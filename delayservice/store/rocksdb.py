"""RocksDB store: a shard's records in key order, in the database of its worker. It has one
write-ahead log and one sync for all shards.

``docs/internals/format-rocksdb.md`` has layout, invariants and recovery. Keys are big endian, so
that byte order is key order, and begin with the number of the shard, so that one range deletes its
rows::

    0 u32, 'p', number u32    -> partition i32, topic          the shard that has this number
    0 u32, 'h', number u32    -> stop offset i64, count i64    its S, and its number of records
    0 u32, 'l', number u32    -> label                         its label
    0 u32, 'w'                -> state of the files            see ``ManifestGuard``
    number u32, 'f', key_ms i64, offset i64       -> payload     a record
    number u32, 'f', key_ms i64, offset i64, 1    -> mark i64    the record's mark, right after it
    number u32, 'n', 'd', 'm'                                    ids, see ``delayservice.store.ids``

After a crash, RocksDB restores the batches from its write-ahead log up to one of them. Each batch
has the new S of its shard, so horizon, label and records always agree.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import structlog
from rocksdict import WriteBatch

from delayservice.base.errors import StoreError
from delayservice.contract.entry import OFFSET_MAX
from delayservice.engine.cursor import Cursor, Key
from delayservice.store.base import (
    NO_MARK,
    CountRange,
    Frame,
    Mark,
    Named,
    Scanner,
    Store,
    StoreStats,
)
from delayservice.store.files import Files
from delayservice.store.folder import StoreFolder
from delayservice.store.ids import IdRows
from delayservice.store.rocks import (
    Guarded,
    ManifestGuard,
    Reclaimer,
    RocksOptions,
    close_database,
    is_damage,
    open_database,
    prefix_of,
    read_keys,
    read_rows,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from rocksdict import Rdict


_log = structlog.get_logger(__name__)

FORMAT: Final = 1
DATABASE: Final = "db"

# ``(topic, partition)`` of a shard: hash of the delay topic's id, and partition.
ShardName: TypeAlias = tuple[str, int]

_REBUILT: Final = "the database is put aside, and all its shards are rebuilt from Kafka"
_ROW = Struct(">IcI")
_HELD = Struct(">qq")
_PARTITION = Struct(">i")
_PLACES, _HORIZONS, _LABELS = b"p", b"h", b"l"
_SHARDS_MAX: Final = 2**32 - 2


class ShardState(NamedTuple):
    """State of one shard in a database; ``stop_offset`` is S, a source offset."""

    number: int
    stop_offset: int
    records: int
    label: bytes


class RocksDatabase:
    """Database of one worker. Only the worker's thread may use it."""

    def __init__(self, path: Path, options: RocksOptions | None = None) -> None:
        self.options = options or RocksOptions()
        self.what = f"the store {path}"
        # Number of stored records of all open shards.
        self.records = 0
        self._files = Files()
        self._folder = StoreFolder(path, "rocksdb", FORMAT, self._files)
        self._path = path
        self._database_path = path / DATABASE
        self._database: Rdict | None = None
        self._manifest_guard: ManifestGuard | None = None
        self._reclaimer = Reclaimer(self._database_path)
        self._clear()

    def _clear(self) -> None:
        self._numbers: dict[ShardName, int] = {}
        self._open_places: set[ShardName] = set()
        self._idle_s: dict[ShardName, float] = {}
        self._durable: dict[int, int] = {}
        self._written: dict[int, int] = {}
        self._unsynced_bytes = 0
        self.records = 0

    # --- life ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the database, unless it is open. A damaged one is moved to quarantine, and an empty
        one is created.

        Raises:
            StoreError: another process has the folder open, it has a store of another kind or a
                newer format, or the database can't be opened for lack of space, memory, files or
                rights.
        """
        if self._database is not None:
            return
        is_known = self._folder.enter()
        try:
            if not is_known:
                self._files.remove_tree(str(self._database_path))
            if not is_known or not self._recover():
                self._start_over()
        except BaseException:
            self.abandon()
            raise

    def _recover(self) -> bool:
        if not self._database_path.is_dir():
            return False
        try:
            self._database = open_database(self._database_path, self.options)
            self._fill()
        except Exception as exc:
            if not is_damage(exc):
                raise StoreError(f"can't open the store {self._path}: {exc}") from exc
            _log.error("store_damaged", path=str(self._path), why=str(exc), hint=_REBUILT)
            return False
        return True

    def _fill(self) -> None:
        # Read when the database is opened, so that damage of these rows is found then.
        self._clear()
        found = _read_numbers(self.database)
        self._durable = {n: self._read_state(n).stop_offset for n in found.values()}
        self._idle_s = dict.fromkeys(found, time.monotonic())
        self._numbers = found

    def _start_over(self) -> None:
        self._release()
        if self._files.exists(str(self._database_path)):
            self._folder.quarantine(str(self._database_path), DATABASE)
        self._clear()
        self._database = open_database(self._database_path, self.options)
        self._folder.stamp()
        self._files.sync_dir(str(self._path))

    def close(self) -> None:
        try:
            if self._database is not None:
                self.sync()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close all files and unlock the folder, without a sync."""
        self._release()
        self._open_places.clear()
        self._files.close()
        self._folder.leave()

    def _release(self) -> None:
        self._reclaimer.close()
        if self._database is not None:
            close_database(self._database, self._database_path)
            self._database = self._manifest_guard = None

    @property
    def database(self) -> Rdict:
        if self._database is None:
            raise StoreError(f"the store {self._path} is not open; open it first")
        return self._database

    def guard(self, deed: str) -> AbstractContextManager[None]:
        """Return a context as ``Guarded``; ``deed``: verb of the operation, for the message."""
        return Guarded(deed, self.what, self._database_path)

    # --- shards --------------------------------------------------------------------------------

    @property
    def places(self) -> list[ShardName]:
        return sorted(self._numbers)

    def attach(self, place: ShardName) -> ShardState:
        """Open a shard for a lane, and the database if it is closed. A new shard gets a number."""
        self.open()
        if place in self._open_places:
            raise StoreError(
                f"shard {place[0]}/{place[1]} of {self._path} is in use by this process already; "
                "close it first"
            )
        number = self._numbers.get(place)
        if number is None:
            number = self._add(place)
        with self.guard("read"):
            state = self._read_state(number)
        self._open_places.add(place)
        self._idle_s.pop(place, None)
        self.records += state.records
        return state

    def _add(self, place: ShardName) -> int:
        number = 1 + max(self._numbers.values(), default=0)
        if number > _SHARDS_MAX:
            raise StoreError(f"{self.what} has no number left for a shard; remove its folder")
        batch = WriteBatch(raw_mode=True)
        batch.put(_ROW.pack(0, _PLACES, number), _PARTITION.pack(place[1]) + place[0].encode())
        self.write(number, batch, 0, 0)
        self._numbers[place] = number
        self._durable[number] = 0
        return number

    def _read_state(self, number: int) -> ShardState:
        held = self.database.get(_ROW.pack(0, _HORIZONS, number))
        if held is None:
            raise OSError(f"shard {number} has no horizon")
        stop_offset, count = _HELD.unpack(held)
        label = self.database.get(_ROW.pack(0, _LABELS, number)) or b""
        return ShardState(number, stop_offset, count, bytes(label))

    def detach(self, place: ShardName, count: int) -> None:
        # The database is closed with its last open shard, and otherwise synced.
        self._open_places.discard(place)
        self._idle_s[place] = time.monotonic()
        self.records -= count
        if self._open_places:
            self.sync()
        else:
            self.close()

    def empty(self, number: int) -> None:
        """Delete all records, ids and the label of a shard durably, and set its horizon to 0."""
        batch = WriteBatch(raw_mode=True)
        batch.delete(_ROW.pack(0, _LABELS, number))
        batch.delete_range(prefix_of(number), prefix_of(number + 1))
        self.write(number, batch, 0, 0)
        self.sync()

    def remove(self, place: ShardName) -> None:
        """Delete a shard, unless it is open. Opened again, it is filled from the log."""
        was_open = self._database is not None
        self.open()
        if place in self._numbers and place not in self._open_places:
            self._remove(place)
            self.sync()
        if not was_open:
            self.close()

    def _remove(self, place: ShardName) -> None:
        number = self._numbers.pop(place)
        batch = WriteBatch(raw_mode=True)
        for kind in (_PLACES, _HORIZONS, _LABELS):
            batch.delete(_ROW.pack(0, kind, number))
        batch.delete_range(prefix_of(number), prefix_of(number + 1))
        self._write(number, batch, 0)
        self._idle_s.pop(place, None)
        self._durable.pop(number, None)
        self._reclaimer.reclaim(self.database, number)

    # --- writing -------------------------------------------------------------------------------

    def make_room(self) -> None:
        """Sync if ``sync_bytes`` were written since the last sync."""
        if self._unsynced_bytes >= self.options.sync_bytes:
            self.sync()

    def write(self, number: int, batch: WriteBatch, stop_offset: int, count: int) -> None:
        """Write the rows of ``batch`` for a shard, with its new S and number of records."""
        batch.put(_ROW.pack(0, _HORIZONS, number), _HELD.pack(stop_offset, count))
        self._write(number, batch, stop_offset)

    def write_label(self, number: int, label: bytes, stop_offset: int, count: int) -> None:
        # A batch of its own: the caller writes the records that the label describes later.
        batch = WriteBatch(raw_mode=True)
        batch.put(_ROW.pack(0, _LABELS, number), label)
        self.write(number, batch, stop_offset, count)

    def _write(self, number: int, batch: WriteBatch, stop_offset: int) -> None:
        size = batch.size_in_bytes()
        database = self.database
        with self.guard("write"):
            if self._manifest_guard is None:
                self._manifest_guard = ManifestGuard(self._database_path, database)
            self._manifest_guard.put(batch)
            database.write(batch)
        self._unsynced_bytes += size
        self._written[number] = stop_offset

    def sync(self) -> None:
        """Make all written rows durable, and S of all shards; after an error, the process must
        exit.
        """
        self._remove_unused()
        if self._written:
            with self.guard("fsync"):
                self.database.flush_wal(sync=True)
            self._durable |= self._written
            self._written = {}
            self._unsynced_bytes = 0

    def durable_offset(self, number: int) -> int:
        return self._durable[number]

    def _remove_unused(self) -> None:
        # Another node or worker has the slices of shards that were not open for ``unused_s``
        # seconds.
        least_s = time.monotonic() - self.options.unused_s
        for place in [place for place, idle_s in self._idle_s.items() if idle_s < least_s]:
            _log.info("unused_shard_removed", shard=place[0], partition=place[1])
            self._remove(place)

    @property
    def bytes(self) -> int:
        sizes = ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")
        return sum(self.database.property_int_value(name) or 0 for name in sizes)


def _read_numbers(database: Rdict) -> dict[ShardName, int]:
    first, stop = _ROW.pack(0, _PLACES, 0), _ROW.pack(0, _PLACES, _SHARDS_MAX + 1)
    found: dict[ShardName, int] = {}
    for row, value in read_rows(database, first, stop, _SHARDS_MAX):
        topic = value[_PARTITION.size :].decode("ascii")
        found[topic, _PARTITION.unpack_from(value)[0]] = _ROW.unpack(row)[2]
    return found


_SLOT_MS = 1000
_SINGLES_MAX = 200
_LUMP_RECORDS = 50_000
_LUMP_MS = 600_000
_LUMPS_KEYS = 20_000
# Least width, in milliseconds, of the last count that ``lumps`` returns, which is for all records
# that were not counted one by one. By the width, callers know that the count is coarse.
_REST_MS: Final = 3_600_000
_I64 = Struct(">q")
_KEY = Struct(">Icqq")
_KEY_TAIL = Struct(">5xqq")
_KEY_BYTES: Final = _KEY.size
_MARK_SUFFIX = b"\x01"
_unpack_key = _KEY_TAIL.unpack


def _records_in(keys: Sequence[bytes]) -> int:
    return sum([len(key) == _KEY_BYTES for key in keys])


class RocksStore(Store):
    """Store of one shard in the database that all shards of its worker share."""

    def __init__(self, rocks: RocksDatabase, topic: str, partition: int) -> None:
        self._rocks = rocks
        self._place = topic, partition
        self._state: ShardState | None = None

    # --- life ----------------------------------------------------------------------------------

    def open(self) -> int:
        state = self._state = self._rocks.attach(self._place)
        prefix = self._prefix = prefix_of(state.number)
        self._pack_key = partial(_KEY.pack, state.number, b"f")
        self._frames_end = prefix + b"g"
        self._take_over(state)
        return self._stop_offset

    def _take_over(self, state: ShardState) -> None:
        self._ids = IdRows(self._db, self._prefix)
        self._stop_offset, self._label = state.stop_offset, state.label
        self._pruned_ms = self._deleted_ms = 0
        # Number of records with key times below ``_pruned_ms`` that are not deleted yet; ``_count``
        # includes them.
        self._passed = 0
        self._count = state.records

    @property
    def _number(self) -> int:
        if self._state is None:
            raise StoreError(f"the store of shard {self._place} is not open; open it first")
        return self._state.number

    @property
    def _db(self) -> Rdict:
        return self._rocks.database

    @property
    def label(self) -> bytes:
        return self._label

    def set_label(self, label: bytes) -> None:
        self._rocks.write_label(self._number, label, self._stop_offset, self._count)
        self._label = label

    def reset(self) -> None:
        self._rocks.empty(self._number)
        self._rocks.records -= self._count
        self._take_over(ShardState(self._number, 0, 0, b""))

    def close(self) -> None:
        if self._state is not None:
            self._state = None
            self._rocks.detach(self._place, self._count)

    # --- store ---------------------------------------------------------------------------------

    def append(
        self,
        frames: Sequence[Frame],
        named: Sequence[Named],
        marks: Sequence[Mark],
        stop_offset: int,
    ) -> None:
        self._rocks.make_room()
        batch = WriteBatch(raw_mode=True)
        self._put_frames(batch, frames)
        for _, key_ms, offset, mark in marks:
            if key_ms >= self._pruned_ms:  # else its record is not read again, and may be deleted
                batch.put(self._pack_key(key_ms, offset) + _MARK_SUFFIX, _I64.pack(mark))
        if named or marks:
            with self._rocks.guard("read"):
                self._ids.put(batch, named, marks)
        self._add(len(frames))
        self._write(batch, stop_offset)
        self._stop_offset = stop_offset

    def _put_frames(self, batch: WriteBatch, frames: Sequence[Frame]) -> None:
        put, pack = batch.put, self._pack_key
        for key_ms, offset, mark, payload in frames:
            put(pack(key_ms, offset), payload)
            if mark != NO_MARK:
                put(pack(key_ms, offset) + _MARK_SUFFIX, _I64.pack(mark))

    def _write(self, batch: WriteBatch, stop_offset: int) -> None:
        self._rocks.write(self._number, batch, stop_offset, self._count)

    def _add(self, records: int) -> None:
        self._count += records
        self._rocks.records += records

    def _above(self, key: Key) -> bytes:
        # Above the rows of the record with this key and of its mark.
        if key[1] >= OFFSET_MAX:
            return self._pack_key(max(key[0] + 1, 0), 0)
        return self._pack_key(max(key[0], 0), max(key[1] + 1, 0))

    # --- due -----------------------------------------------------------------------------------

    def read_due(self, after: Key, upto_ms: int, limit: int) -> list[Frame]:
        start = self._above(max(after, (self._pruned_ms, -1)))
        stop = self._above((upto_ms, OFFSET_MAX))
        with self._rocks.guard("read"):
            found = read_rows(self._db, start, stop, limit)
            if all([len(key) == _KEY_BYTES for key, _ in found]):  # noqa: C419 - twice as fast
                return self._with_last_mark(found)
            # Each record is followed by at most one mark, so twice the rows hold ``limit`` records.
            rows = read_rows(self._db, start, stop, 2 * limit)
        # Only marks whose records were pruned were found: continue behind them.
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
        start = self._above(max(after, (self._pruned_ms, -1)))
        with self._rocks.guard("read"):
            found = read_keys(self._db, start, self._frames_end, 1)
        return int(_unpack_key(found[0][:_KEY_BYTES])[0]) if found else None

    def scanner(self, *, for_repair: bool = False) -> Scanner:  # noqa: ARG002  # no damage here
        return Scanner(self.read_due)

    def rebuild(self, start_ms: int, stop_ms: int, frames: Sequence[Frame]) -> None:
        start_ms = max(start_ms, self._pruned_ms)
        if start_ms >= stop_ms:
            return
        inside = [frame for frame in frames if start_ms <= frame[0] < stop_ms]
        start, stop = self._pack_key(start_ms, 0), self._pack_key(stop_ms, 0)
        with self._rocks.guard("read"):
            self._add(len(inside) - self._count_between(start, stop))
        batch = WriteBatch(raw_mode=True)
        batch.delete_range(start, stop)
        self._put_frames(batch, inside)
        self._write(batch, self._stop_offset)

    # --- ids -----------------------------------------------------------------------------------

    def latest_unmarked(self, record_id: bytes, below: int) -> Key | None:
        with self._rocks.guard("read"):
            return self._ids.latest_unmarked(record_id, min(below, self._stop_offset))

    def marked_from(self, mark: int) -> list[tuple[int, Key]]:
        with self._rocks.guard("read"):
            return self._ids.marked_from(mark, self._stop_offset)

    # --- prune and sync ------------------------------------------------------------------------

    def prune(self, cursor: Cursor) -> None:
        # Up to ``_SINGLES_MAX`` rows are deleted one by one. More are only hidden from reads, and
        # deleted by a range later, because each range deletion slows all readers of the database:
        # with 5,000 of them in the memory table, a prune of one shard took 1.3 ms.
        stop_ms = cursor.key[0] // _SLOT_MS * _SLOT_MS
        batch = WriteBatch(raw_mode=True)
        with self._rocks.guard("read"):
            self._prune(batch, cursor, stop_ms)
        if not batch.is_empty():
            self._write(batch, self._stop_offset)

    def _prune(self, batch: WriteBatch, cursor: Cursor, stop_ms: int) -> None:
        if stop_ms > self._pruned_ms:
            start, stop = self._pack_key(self._pruned_ms, 0), self._pack_key(stop_ms, 0)
            keys = read_keys(self._db, start, stop, _SINGLES_MAX + 1)
            if len(keys) <= _SINGLES_MAX:
                for key in keys:
                    batch.delete(key)
                self._add(-min(_records_in(keys), self._count))
            else:
                self._passed += self._count_between(start, stop)
            self._pruned_ms = stop_ms
            if self._passed >= _LUMP_RECORDS or stop_ms - self._deleted_ms >= _LUMP_MS:
                self._delete_passed(batch)
        # Marks that are still to come have offsets from S on, wherever H is by now.
        self._ids.prune(batch, cursor.key[0], min(cursor.offset, self._stop_offset))

    def _delete_passed(self, batch: WriteBatch) -> None:
        if self._passed:
            start = self._pack_key(self._deleted_ms, 0)
            batch.delete_range(start, self._pack_key(self._pruned_ms, 0))
            self._add(-min(self._passed, self._count))
            self._passed = 0
        self._deleted_ms = self._pruned_ms

    def _count_between(self, start: bytes, stop: bytes) -> int:
        count = 0
        while keys := read_keys(self._db, start, stop, 100_000):
            count += _records_in(keys)
            start = keys[-1] + b"\0"
        return count

    def sync(self, *, wait: bool = True) -> int:  # noqa: ARG002  # it always waits
        self._rocks.sync()
        return self._rocks.durable_offset(self._number)

    def lumps(self, start_ms: int, stop_ms: int) -> list[CountRange]:
        # A count of 1 for each unmarked record among the first ``_LUMPS_KEYS`` rows. If there may
        # be more rows, a last count has all other records of the shard, also those outside the
        # range.
        start_ms = max(start_ms, self._pruned_ms)
        start, stop = self._pack_key(start_ms, 0), self._pack_key(stop_ms, 0)
        with self._rocks.guard("read"):
            keys = read_keys(self._db, start, stop, _LUMPS_KEYS)
        marked = {key[:_KEY_BYTES] for key in keys if len(key) > _KEY_BYTES}
        times = [_unpack_key(key)[0] for key in keys if len(key) == _KEY_BYTES]
        if marked:
            records = (key for key in keys if len(key) == _KEY_BYTES and key not in marked)
            times = [_unpack_key(key)[0] for key in records]
        found = [(key_ms, key_ms + 1, 1) for key_ms in times]
        if len(keys) == _LUMPS_KEYS:
            behind_ms = _unpack_key(keys[-1][:_KEY_BYTES])[0] + 1
            rest = max(self._count - self._passed - len(times), 0)
            found.append((behind_ms, max(stop_ms, behind_ms + _REST_MS), rest))
        return found

    def stats(self) -> StoreStats:
        # Bytes are the shard's share of the database, by number of records.
        stored = self._rocks.bytes * self._count // max(self._rocks.records, 1)
        durable_offset = self._rocks.durable_offset(self._number)
        return StoreStats(max(0, self._count - self._passed), stored, durable_offset)
