"""RocksDB store: a shard's records in key order, in the database of its worker.

``docs/internals/format-rocksdb.md`` has layout, invariants and recovery. Keys are big endian, so
that byte order is key order, and begin with the number of the shard::

    number u32, 'f', key_ms i64, offset i64       -> payload     a record
    number u32, 'f', key_ms i64, offset i64, 1    -> mark i64    the record's mark, right after it
    number u32, 'n', 'd', 'm'                                    ids, see ``delayservice.store.ids``

After a crash, RocksDB restores the batches from its write-ahead log up to one of them. Each batch
has the new S of its shard, so horizon, label and records always agree.
"""

from __future__ import annotations

from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Final

from rocksdict import WriteBatch

from delayservice.base.errors import StoreError
from delayservice.contract.entry import OFFSET_MAX
from delayservice.engine.cursor import Cursor, Key
from delayservice.store.base import (
    NO_MARK,
    Frame,
    Lump,
    Mark,
    Named,
    Scanner,
    Store,
    StoreStats,
)
from delayservice.store.id_rows import IdRows
from delayservice.store.rocks import prefix_of, read_keys, read_rows
from delayservice.store.rocks_database import RocksDatabase, ShardState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocksdict import Rdict

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
    """Store of one shard in the database that all shards of its worker share. ``topic``: hash of
    the delay topic's id.
    """

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

    def lumps(self, start_ms: int, stop_ms: int) -> list[Lump]:
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
