"""RocksDB store: a shard's records in key order, in the database of its worker. It has one
write-ahead log and one sync for all shards.

``docs/internals/format-rocksdb.md`` has layout, invariants and recovery. Keys are big endian, so
that byte order is key order, and begin with the number of the shard, so that one range deletes its
rows::

    0 u32, 'p', number u32    -> partition i32, topic          the shard that has this number
    0 u32, 'h', number u32    -> stop offset, records, rows i64    its S, and what it holds
    0 u32, 'l', number u32    -> label                         its label
    0 u32, 'c'                -> sequence number u64           see ``mark_closed``
    number u32, 'f', key_ms i64, offset i64       -> payload     a record
    number u32, 'f', key_ms i64, offset i64, 1    -> mark i64    the record's mark, right after it
    number u32, 'n', 'd', 'm'                                    ids, see ``delayservice.store.ids``

After a crash, RocksDB restores the batches from its write-ahead log up to one of them. Each batch
has the new S of its shard and its number of rows, so horizon, label and records always agree, or
files are lost. That is noticed because the rows are counted, unless the database was closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final

import structlog
from rocksdict import WriteBatch

from delayservice.base.errors import StoreError
from delayservice.contract.entry import OFFSET_MAX
from delayservice.engine.cursor import Cursor, Group, Key
from delayservice.store.base import (
    NO_MARK,
    Frame,
    Mark,
    Named,
    Scanner,
    Sighting,
    StoreStats,
)
from delayservice.store.files import Files
from delayservice.store.ids import IdRows
from delayservice.store.rocks import (
    Guarded,
    Reclaimer,
    RocksOptions,
    all_keys,
    close_database,
    count_keys,
    is_damage,
    mark_closed,
    numbers_in,
    open_database,
    prefix_of,
    read_keys,
    read_rows,
    was_closed,
)
from delayservice.store.shards import ShardState, ShardStore, WorkerShards

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from rocksdict import Rdict

_log = structlog.get_logger(__name__)

FORMAT: Final = 1
DATABASE: Final = "db"

_REBUILT: Final = "the database is put aside, and all its shards are rebuilt from Kafka"
_ROW = Struct(">IcI")
_HELD = Struct(">qqq")
_PARTITION = Struct(">i")
_NAMES, _HORIZONS, _LABELS = b"p", b"h", b"l"
_SHARDS_MAX: Final = 2**32 - 2


@dataclass(eq=False, slots=True)
class RocksShard(ShardState):
    """State of one shard; ``rows``: number of rows whose keys begin with its number."""

    rows: int = 0


class RocksDatabase(WorkerShards[RocksShard]):
    """Database of one worker."""

    def __init__(self, path: Path, options: RocksOptions | None = None) -> None:
        self.options = options or RocksOptions()
        super().__init__(path, "rocksdb", FORMAT, Files(), self.options.unused_s)
        self.what = f"the store {path}"
        self._database_path = path / DATABASE
        self._database: Rdict | None = None
        self._reclaimer = Reclaimer(self._database_path)
        self._unsynced_bytes = 0

    def store(self, topic: str, partition: int) -> RocksStore:
        return RocksStore(self, topic, partition)

    # --- life ----------------------------------------------------------------------------------

    def _recover(self) -> bool:
        if not self._database_path.is_dir():
            return False
        try:
            self._database = open_database(self._database_path, self.options)
            self._fill()
        except Exception as exc:
            if not is_damage(exc):
                raise StoreError(f"can't open the store {self.path}: {exc}") from exc
            self._raise_in_view(str(exc))
            _log.error("store_damaged", path=self.path, why=str(exc), hint=_REBUILT)
            return False
        return True

    def _fill(self) -> None:
        # Read when the database is opened, so that damage of these rows is found then.
        database = self.database
        first, stop = _ROW.pack(0, _NAMES, 0), _ROW.pack(0, _NAMES, _SHARDS_MAX + 1)
        for row, value in read_rows(database, first, stop, _SHARDS_MAX):
            topic, number = value[_PARTITION.size :].decode("ascii"), _ROW.unpack(row)[2]
            shard = RocksShard(topic, _PARTITION.unpack_from(value)[0], number)
            held = database.get(_ROW.pack(0, _HORIZONS, number))
            if held is None:
                raise OSError(f"shard {number} has no horizon")
            shard.stop_offset, records, shard.rows = _HELD.unpack(held)
            shard.durable_offset = shard.stop_offset
            shard.label = bytes(database.get(_ROW.pack(0, _LABELS, number)) or b"")
            self.shards[topic, shard.partition] = shard
            self.count(shard, records)
        if not (was_closed(database) or self.is_view):
            self._check_rows()

    def _check_rows(self) -> None:
        # Rows of a number that no shard has: the list of shards has lost some.
        expected = {shard.number: shard.rows for shard in self.shards.values()}
        for number in numbers_in(self.database):
            found = count_keys(self.database, prefix_of(number), prefix_of(number + 1))
            if found != expected.pop(number, 0):
                raise OSError(f"shard {number} has {found} rows, which is not what it had")
        if any(expected.values()):
            raise OSError(f"all rows of some shards are lost: {expected}")

    def check(self) -> bool:
        with self.guard("read"):
            self._check_rows()
        return True

    def _start_over(self, *, is_damaged: bool) -> None:
        self._release()
        path = str(self._database_path)
        if is_damaged and self._files.exists(path):
            self._folder.quarantine(path, DATABASE)
        self._files.remove_tree(path)
        self._database = open_database(self._database_path, self.options)
        self._folder.stamp()
        self._files.sync_dir(self.path)

    def _seal(self) -> None:
        with self.guard("write"):
            mark_closed(self.database)

    def _release(self) -> None:
        self._reclaimer.close()
        self._unsynced_bytes = 0
        if self._database is not None:
            close_database(self._database, self._database_path)
            self._database = None

    @property
    def database(self) -> Rdict:
        if self._database is None:
            raise StoreError(f"the store {self.path} is not open; open it first")
        return self._database

    def guard(self, deed: str) -> AbstractContextManager[None]:
        """Return a context as ``Guarded``; ``deed``: verb of the operation, for the message."""
        return Guarded(deed, self.what, self._database_path)

    # --- shards --------------------------------------------------------------------------------

    def _create(self, topic: str, partition: int) -> RocksShard:
        number = 1 + max((shard.number for shard in self.shards.values()), default=0)
        if number > _SHARDS_MAX:
            raise StoreError(f"{self.what} has no number left for a shard; remove its folder")
        shard = RocksShard(topic, partition, number)
        batch = WriteBatch(raw_mode=True)
        batch.put(_ROW.pack(0, _NAMES, number), _PARTITION.pack(partition) + topic.encode())
        self.write(shard, batch, 0)
        return shard

    def _clear(self, shard: RocksShard) -> None:
        batch = WriteBatch(raw_mode=True)
        batch.delete(_ROW.pack(0, _LABELS, shard.number))
        batch.delete_range(prefix_of(shard.number), prefix_of(shard.number + 1))
        self.count(shard, -shard.pending)
        shard.rows, shard.label = 0, b""
        self.write(shard, batch, 0)

    def _drop(self, shard: RocksShard) -> None:
        number = shard.number
        batch = WriteBatch(raw_mode=True)
        for kind in (_NAMES, _HORIZONS, _LABELS):
            batch.delete(_ROW.pack(0, kind, number))
        batch.delete_range(prefix_of(number), prefix_of(number + 1))
        self._write(batch)
        self.count(shard, -shard.pending)
        self._reclaimer.reclaim(self.database, number)

    # --- writing -------------------------------------------------------------------------------

    def make_room(self) -> None:
        """Sync if ``sync_bytes`` were written since the last sync."""
        if self._unsynced_bytes >= self.options.sync_bytes:
            self.sync()

    def write(self, shard: RocksShard, batch: WriteBatch, stop_offset: int) -> None:
        """Write the rows of ``batch`` for a shard, with its new S and its numbers of records and
        rows.
        """
        held = _HELD.pack(stop_offset, shard.pending, shard.rows)
        batch.put(_ROW.pack(0, _HORIZONS, shard.number), held)
        self._write(batch)
        shard.stop_offset = stop_offset

    def write_label(self, shard: RocksShard, label: bytes) -> None:
        # A batch of its own: the caller writes the records that the label describes later.
        batch = WriteBatch(raw_mode=True)
        batch.put(_ROW.pack(0, _LABELS, shard.number), label)
        self.write(shard, batch, shard.stop_offset)
        shard.label = label

    def _write(self, batch: WriteBatch) -> None:
        size = batch.size_in_bytes()
        with self.guard("write"):
            self.database.write(batch)
        self._unsynced_bytes += size

    def sync(self) -> None:
        self._remove_unused()
        if self._unsynced_bytes:
            with self.guard("fsync"):
                self.database.flush_wal(sync=True)
            self._unsynced_bytes = 0
            for shard in self.shards.values():
                shard.durable_offset = shard.stop_offset

    @property
    def bytes(self) -> int:
        sizes = ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")
        return sum(self.database.property_int_value(name) or 0 for name in sizes)


_SINGLES_MAX = 20
_LUMP_RECORDS = 50_000
_LUMP_MS = 600_000
_I64 = Struct(">q")
_KEY = Struct(">Icqq")
_KEY_TAIL = Struct(">5xqq")
_KEY_BYTES: Final = _KEY.size
_MARK_SUFFIX = b"\x01"
_unpack_key = _KEY_TAIL.unpack


def _records_in(keys: Sequence[bytes]) -> int:
    return sum([len(key) == _KEY_BYTES for key in keys])


class RocksStore(ShardStore[RocksShard]):
    """Store of one shard in the database that all shards of its worker share."""

    def __init__(self, rocks: RocksDatabase, topic: str, partition: int) -> None:
        super().__init__(rocks, topic, partition)
        self._rocks = rocks

    def _begin(self, shard: RocksShard) -> None:
        prefix = prefix_of(shard.number)
        self._pack_key = partial(_KEY.pack, shard.number, b"f")
        self._frames_end = prefix + b"g"
        self._ids = IdRows(self._db, prefix)
        # K of the last ``prune``; rows up to it are not read again.
        self._pruned: Key = (0, -1)
        self._deleted_ms = 0
        # Numbers of records and rows up to ``_pruned`` that are not deleted yet; those of the shard
        # include them.
        self._passed = self._passed_rows = 0

    @property
    def _db(self) -> Rdict:
        return self._rocks.database

    def set_label(self, label: bytes) -> None:
        self._rocks.write_label(self._shard, label)

    # --- store ---------------------------------------------------------------------------------

    def append(
        self,
        frames: Sequence[Frame],
        named: Sequence[Named],
        marks: Sequence[Mark],
        stop_offset: int,
        sightings: Sequence[Sighting] = (),
    ) -> None:
        self._rocks.make_room()
        batch = WriteBatch(raw_mode=True)
        # Rows below are not read again, and those there were are counted and deleted as one range.
        pruned = self._pruned
        if pruned[0]:
            frames = [frame for frame in frames if frame[0] > pruned[0] or frame[:2] > pruned]
        rows = self._put_frames(batch, frames)
        for _, key_ms, offset, mark in marks:
            if (key_ms, offset) > self._pruned:
                batch.put(self._pack_key(key_ms, offset) + _MARK_SUFFIX, _I64.pack(mark))
                rows += 1
        if named or marks or sightings:
            with self._rocks.guard("read"):
                rows += self._ids.put(batch, named, marks, sightings)
        self._add(len(frames), rows)
        self._rocks.write(self._shard, batch, stop_offset)

    def _put_frames(self, batch: WriteBatch, frames: Sequence[Frame]) -> int:
        put, pack = batch.put, self._pack_key
        rows = len(frames)
        for key_ms, offset, mark, payload in frames:
            put(pack(key_ms, offset), payload)
            if mark != NO_MARK:
                put(pack(key_ms, offset) + _MARK_SUFFIX, _I64.pack(mark))
                rows += 1
        return rows

    def _write(self, batch: WriteBatch) -> None:
        self._rocks.write(self._shard, batch, self._shard.stop_offset)

    def _add(self, records: int, rows: int) -> None:
        self._rocks.count(self._shard, records)
        self._shard.rows += rows

    def _above(self, key: Key) -> bytes:
        # Above the rows of the record with this key and of its mark.
        if key[1] >= OFFSET_MAX:
            return self._pack_key(max(key[0] + 1, 0), 0)
        return self._pack_key(max(key[0], 0), max(key[1] + 1, 0))

    # --- due -----------------------------------------------------------------------------------

    def read_due(self, after: Key, upto_ms: int, limit: int) -> list[Frame]:
        start = self._above(max(after, self._pruned))
        stop = self._above((upto_ms, OFFSET_MAX))
        while True:
            with self._rocks.guard("read"):
                rows = read_rows(self._db, start, stop, limit)
                if all([len(key) == _KEY_BYTES for key, _ in rows]):  # noqa: C419 - twice as fast
                    return self._with_last_mark(rows)
                # Each record is followed by at most one mark, so twice the rows hold ``limit``
                # records.
                rows = read_rows(self._db, start, stop, 2 * limit)
            found = self._with_marks(rows, limit)
            if found:
                return found
            # Only marks whose records were pruned were found: continue behind them.
            start = self._above(_unpack_key(rows[-1][0][:_KEY_BYTES]))

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
        start = self._above(max(after, self._pruned))
        with self._rocks.guard("read"):
            found = read_keys(self._db, start, self._frames_end, 1)
        return int(_unpack_key(found[0][:_KEY_BYTES])[0]) if found else None

    def scanner(self, *, for_repair: bool = False) -> Scanner:  # noqa: ARG002  # no damage here
        return Scanner(self.read_due)

    def rebuild(self, start_ms: int, stop_ms: int, frames: Sequence[Frame]) -> None:
        start, stop = self._above(max((start_ms, -1), self._pruned)), self._pack_key(stop_ms, 0)
        if start >= stop:
            return
        inside = [frame for frame in frames if start <= self._pack_key(*frame[:2]) < stop]
        with self._rocks.guard("read"):
            records, rows = self._count_between(start, stop)
        batch = WriteBatch(raw_mode=True)
        batch.delete_range(start, stop)
        self._add(len(inside) - records, self._put_frames(batch, inside) - rows)
        self._write(batch)

    # --- ids -----------------------------------------------------------------------------------

    def latest_unmarked(self, record_id: bytes, below: int) -> Key | None:
        with self._rocks.guard("read"):
            return self._ids.latest_unmarked(record_id, min(below, self._shard.stop_offset))

    def group_of(self, record_id: bytes) -> Group | None:
        with self._rocks.guard("read"):
            return self._ids.group_of(record_id)

    def marked_from(self, mark: int) -> list[tuple[int, Key]]:
        with self._rocks.guard("read"):
            return self._ids.marked_from(mark, self._shard.stop_offset)

    def sighted_from(self, seen_by: int) -> list[tuple[int, Key]]:
        with self._rocks.guard("read"):
            return self._ids.sighted_from(seen_by, self._shard.stop_offset)

    # --- prune and sync ------------------------------------------------------------------------

    def prune(self, cursor: Cursor) -> None:
        # Up to ``_SINGLES_MAX`` rows are deleted one by one. More are only hidden from reads, and
        # deleted by a range later, because each range deletion slows all readers of the database:
        # with 5,000 of them in the memory table, a prune of one shard took 1.3 ms.
        batch = WriteBatch(raw_mode=True)
        with self._rocks.guard("read"):
            self._prune(batch, cursor)
        if not batch.is_empty():
            self._write(batch)

    def _prune(self, batch: WriteBatch, cursor: Cursor) -> None:
        key = min(cursor.key, (cursor.key[0], cursor.offset - 1))  # others of K's time are kept
        if key > self._pruned:
            start, stop = self._above(self._pruned), self._above(key)
            keys = read_keys(self._db, start, stop, _SINGLES_MAX + 1)
            if len(keys) <= _SINGLES_MAX:
                for row in keys:
                    batch.delete(row)
                self._add(-_records_in(keys), -len(keys))
            else:
                records, rows = self._count_between(start, stop)
                self._passed += records
                self._passed_rows += rows
            self._pruned = key
            if self._passed >= _LUMP_RECORDS or key[0] - self._deleted_ms >= _LUMP_MS:
                self._delete_passed(batch)
        # Marks that are still to come have offsets from S on, wherever H is by now.
        mark = min(cursor.offset, self._shard.stop_offset)
        self._shard.rows += self._ids.prune(batch, key[0], mark)

    def _delete_passed(self, batch: WriteBatch) -> None:
        if self._passed_rows:
            batch.delete_range(self._pack_key(self._deleted_ms, 0), self._above(self._pruned))
            self._add(-self._passed, -self._passed_rows)
            self._passed = self._passed_rows = 0
        self._deleted_ms = self._pruned[0]

    def _count_between(self, start: bytes, stop: bytes) -> tuple[int, int]:
        records = rows = 0
        for keys in all_keys(self._db, start, stop):
            records += _records_in(keys)
            rows += len(keys)
        return records, rows

    def sync(self, *, wait: bool = True) -> int:  # noqa: ARG002  # it always waits
        self._rocks.sync()
        return self._shard.durable_offset

    def stats(self) -> StoreStats:
        # Bytes are the shard's share of the database, by number of records.
        shard = self._shard
        stored = self._rocks.bytes * shard.pending // max(self._rocks.records, 1)
        return StoreStats(shard.pending - self._passed, stored, shard.durable_offset)
