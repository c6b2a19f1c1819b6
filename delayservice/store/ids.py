"""Id index of the wheel: the current record of each ``delay-id``, and the offsets of the cancellers
of marked records.

An id has one row, which is overwritten, so a look-up takes one step however many records the id
had. At most one record of an id is both unmarked and pending: a user record marks the record of its
id before it, and a requeued record is written in the transaction that settles its original (design
rules 3 and 12).

All shards of a wheel share one database. The keys of a shard's rows begin with its generation: the
number of its store, which is a new one whenever the shard starts over. In a RocksDB store, whose
rows 'n', 'd' and 'm' are the same, they begin with the shard's number. Keys, big endian, behind
that number (u32)::

    'n' id                              -> key_ms i64, offset i64, group    the id's current record
    'd' key_ms i64, offset i64          -> id                       the same, in key order
    'm' mark i64, key_ms i64, offset i64 -> group and id           marks that H has not passed
    'm' seen by i64, key_ms i64, offset i64 -> nothing             the same of sightings
    's'                                 -> stop offset i64          S of the last sync
    'w'                                 -> stop offset i64, rows i64    S, and number of rows 'n',
                                                                    'd', 'm', at the last write

A group (``census.group_of``) is a msgpack array, ``[target, hour in ms or 0, whether parked]``; in
a row 'm' it is in an array with the id.

A mark deletes the rows 'n' and 'd' of its record and keeps their content in row 'm'. So after a
crash, an index that is ahead of the durable horizon can be cut back to it. This is needed because
the records from there on may be read again under other contracts. A mark is kept until H and the
durable horizon have passed its offset. An index that lacks rows below the horizon is not whole:
then the wheel starts the shard over.
"""

from __future__ import annotations

import shutil
import sys
from struct import Struct
from typing import TYPE_CHECKING, Final

import msgspec
import structlog
from rocksdict import WriteBatch

from delayservice.base.errors import StoreError
from delayservice.engine.cursor import NO_GROUP, Cursor, Group, Key
from delayservice.store.rocks import (
    Guarded,
    Reclaimer,
    RocksOptions,
    all_rows,
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

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from rocksdict import Rdict

    from delayservice.store.base import Mark, Named, Sighting


_PRUNE_ROWS_MAX = 4_000
_SYNCED = b"s"
WRITTEN = b"w"


_I64 = Struct(">q")
_WRITTEN_ROW = Struct(">qq")
_KEY = Struct(">qq")
_DUE = Struct(">cqq")
_MARKED = Struct(">cqqq")
_SIGHTED = b""
_pack = msgspec.msgpack.Encoder().encode
_unpack_group = msgspec.msgpack.Decoder(Group).decode
_unpack_held = msgspec.msgpack.Decoder(tuple[Group, bytes]).decode


class IdRows:
    """Rows of one shard's id index, for a wheel or a RocksDB store."""

    def __init__(self, database: Rdict, prefix: bytes) -> None:
        self._database = database
        self._prefix = prefix
        self._names = prefix + b"n"
        self._due_floor = self._due(0, 0)
        self._mark_floor = self._marked(0, 0, 0)
        # By id, the rows 'n' that were read since rows were last added: the next records and marks
        # are of the same ids.
        self._asked: dict[bytes, bytes | None] = {}

    def _due(self, key_ms: int, offset: int) -> bytes:
        return self._prefix + _DUE.pack(b"d", key_ms, offset)

    def _marked(self, mark: int, key_ms: int, offset: int) -> bytes:
        return self._prefix + _MARKED.pack(b"m", mark, key_ms, offset)

    def _key_of(self, due: bytes) -> Key:
        _, key_ms, offset = _DUE.unpack_from(due, len(self._prefix))
        return key_ms, offset

    def put(
        self,
        batch: WriteBatch,
        named: Sequence[Named],
        marks: Sequence[Mark],
        sightings: Sequence[Sighting],
    ) -> int:
        """Add rows to ``batch``, and return how many rows there are more after it. A marked record
        is no longer the current record of its id.
        """
        put, delete = batch.put, batch.delete
        marked = {offset for _, _, offset, _ in marks}
        newest = {one[0]: one for one in named if one[2] not in marked}
        added = {offset: group for _, _, offset, group in named}
        rows = len(marks) + len(sightings)
        for sighting in sightings:
            put(self._marked(*sighting), _SIGHTED)
        for record_id, key_ms, offset, mark in marks:
            is_current = self._stands_for(record_id) == (key_ms, offset)
            group = added.get(offset) or (self.group_of(record_id) if is_current else None)
            put(self._marked(mark, key_ms, offset), _pack((group or NO_GROUP, record_id)))
            if is_current and record_id not in newest:
                delete(self._names + record_id)
                rows -= 1
            due = self._due(key_ms, offset)
            if is_current or (offset not in added and self._database.get(due) is not None):
                delete(due)
                rows -= 1
        for record_id, key_ms, offset, _ in named:
            if offset not in marked:
                put(self._due(key_ms, offset), record_id)
                rows += 1
        for record_id, key_ms, offset, group in newest.values():
            rows += self._stands_for(record_id) is None
            put(self._names + record_id, _KEY.pack(key_ms, offset) + _pack(group))
        self._asked.clear()
        return rows

    def _row_of(self, record_id: bytes) -> bytes | None:
        if record_id not in self._asked:
            self._asked[record_id] = self._database.get(self._names + record_id)
        return self._asked[record_id]

    def _stands_for(self, record_id: bytes) -> Key | None:
        row = self._row_of(record_id)
        return None if row is None else _KEY.unpack_from(row)

    def group_of(self, record_id: bytes) -> Group | None:
        row = self._row_of(record_id)
        return None if row is None else _unpack_group(row[_KEY.size :])

    def latest_unmarked(self, record_id: bytes, below: int) -> Key | None:
        key = self._stands_for(record_id)
        return None if key is None or key[1] >= below else key

    def count(self) -> int:
        """Return the number of rows."""
        return count_keys(self._database, self._prefix + b"d", self._prefix + b"o")

    def marked_from(self, mark: int, stop_offset: int) -> list[tuple[int, Key]]:
        """Return ``(mark, key)`` of records with marks in ``[mark, stop_offset)``, ascending."""
        return [self._mark_of(row) for row, value in self._marks(mark, stop_offset) if value]

    def sighted_from(self, seen_by: int, stop_offset: int) -> list[tuple[int, Key]]:
        """Return ``(seen_by, key)`` of the sightings in ``[seen_by, stop_offset)``, ascending."""
        return [self._mark_of(row) for row, value in self._marks(seen_by, stop_offset) if not value]

    def _marks(self, mark: int, stop_offset: int) -> list[tuple[bytes, bytes]]:
        start = self._marked(max(mark, 0), 0, 0)
        stop = self._marked(max(stop_offset, 0), 0, 0)
        return read_rows(self._database, start, stop, sys.maxsize)

    def _mark_of(self, row: bytes) -> tuple[int, Key]:
        _, mark, key_ms, offset = _MARKED.unpack_from(row, len(self._prefix))
        return mark, (key_ms, offset)

    def prune(self, batch: WriteBatch, key_ms: int, mark: int) -> int:
        """Delete rows of records with key times below ``key_ms``, and marks below the source offset
        ``mark``; ``_PRUNE_ROWS_MAX`` of each at most in each call. Return how many rows there are
        more after it: 0 or less.
        """
        stop = self._due(key_ms, 0)
        rows = read_rows(self._database, self._due_floor, stop, _PRUNE_ROWS_MAX)
        gone = len(rows)
        for due, record_id in rows:
            batch.delete(due)
            if self._stands_for(record_id) == self._key_of(due):
                batch.delete(self._names + record_id)
                gone += 1
        self._asked.clear()
        self._due_floor = _passed(self._due_floor, stop, [row[0] for row in rows])
        stop = self._marked(max(mark, 0), 0, 0)
        keys = read_keys(self._database, self._mark_floor, stop, _PRUNE_ROWS_MAX)
        for row in keys:
            batch.delete(row)
        self._mark_floor = _passed(self._mark_floor, stop, keys)
        return -gone - len(keys)

    def cut(self, batch: WriteBatch, stop_offset: int) -> int:
        """Undo all records and marks from ``stop_offset`` on, and return how many rows there are
        more after it; records that lose their marks are current.
        """
        rows = 0
        for row, value in all_rows(self._database, self._names, self._prefix + b"o"):
            if stop_offset <= _KEY.unpack_from(value)[1]:
                batch.delete(row)
                rows -= 1
        for row, _ in all_rows(self._database, self._prefix + b"d", self._prefix + b"e"):
            if stop_offset <= self._key_of(row)[1]:
                batch.delete(row)
                rows -= 1
        for row, value in all_rows(self._database, self._prefix + b"m", self._names):
            mark, (key_ms, offset) = self._mark_of(row)
            if stop_offset <= max(mark, offset):
                batch.delete(row)
                rows -= 1
                if offset < stop_offset and value != _SIGHTED:
                    group, record_id = _unpack_held(value)
                    batch.put(self._names + record_id, _KEY.pack(key_ms, offset) + _pack(group))
                    batch.put(self._due(key_ms, offset), record_id)
                    rows += 2
        return rows


def _passed(floor: bytes, stop: bytes, keys: Sequence[bytes]) -> bytes:
    # The next prune begins its search here: RocksDB is slow to pass deleted rows.
    return max(floor, stop if len(keys) < _PRUNE_ROWS_MAX else keys[-1])


_log = structlog.get_logger(__name__)

IDS_OPTIONS: Final = RocksOptions(
    compression="zstd",  # half the bytes of lz4, for ids are mostly hexadecimal text
    write_buffer_bytes=4 << 20,
    block_bytes=8 << 10,
    level_base_bytes=64 << 20,
    wal_bytes_max=8 << 20,
    bloom_bits=10,
)

_REBUILT: Final = "it is removed, and shards with ids are rebuilt from Kafka"


class IdDatabase:
    """RocksDB database of the ids of all shards of a wheel, created when the first id is stored."""

    def __init__(self, path: Path, options: RocksOptions = IDS_OPTIONS) -> None:
        self._path = path
        self._options = options
        self._what = f"the id index {path}"
        self._database: Rdict | None = None
        self._reclaimer = Reclaimer(path)

    def shard(self, generation: int) -> IdIndex:
        return IdIndex(self, generation)

    def recover(
        self, shards: Sequence[tuple[IdIndex, int, bool]], *, counted: bool = False
    ) -> None:
        """Open the database, if there is one, cut all indexes back to the horizon, and set
        ``is_whole`` of each. A damaged database is removed; then the index of each shard that had
        ids is not whole. Rows of shards that are not listed are removed.

        Args:
            shards: for each shard, its index, its horizon (a source offset), and whether it had ids
                at that horizon.
            counted: count the rows even if the database was closed.

        Raises:
            StoreError: the database can't be opened for lack of space, memory, files or rights.
        """
        try:
            if self._path.is_dir():
                counted = counted or not was_closed(self.open())
                self._remove_others({ids.generation for ids, _, _ in shards})
                for ids, stop_offset, expected in shards:
                    ids.recover(stop_offset, expected=expected, counted=counted)
                return
        except Exception as exc:
            if not is_damage(exc):
                raise StoreError(f"can't open {self._what}: {exc}") from exc
            _log.error("id_index_damaged", path=str(self._path), why=str(exc), hint=_REBUILT)
            self.close()
            shutil.rmtree(self._path)
        for ids, _, expected in shards:
            ids.forget()
            ids.is_whole = not expected

    def open(self) -> Rdict:
        if self._database is None:
            self._database = open_database(self._path, self._options)
        return self._database

    def _remove_others(self, generations: set[int]) -> None:
        batch = WriteBatch(raw_mode=True)
        for generation in numbers_in(self.open()):
            if generation not in generations:
                batch.delete_range(prefix_of(generation), prefix_of(generation + 1))
        if not batch.is_empty():
            self.write(batch)

    def remove(self, generation: int) -> None:
        # A crash may restore the rows; then ``recover`` deletes them.
        if self._database is None:
            return
        start, stop = prefix_of(generation), prefix_of(generation + 1)
        with self.guard("read"):
            has_rows = bool(read_keys(self._database, start, stop, 1))
        if has_rows:
            batch = WriteBatch(raw_mode=True)
            batch.delete_range(start, stop)
            self.write(batch)
            self._reclaimer.reclaim(self._database, generation)

    def write(self, batch: WriteBatch) -> None:
        """Write the rows of ``batch``; they become durable with the next ``sync``."""
        with self.guard("write"):
            self.open().write(batch)

    def sync(self, offsets: Sequence[tuple[int, int]]) -> None:
        """Make all rows durable, with S of each generation; the wheel writes its horizon after
        this.
        """
        if not offsets:
            return
        batch = WriteBatch(raw_mode=True)
        for generation, stop_offset in offsets:
            batch.put(prefix_of(generation) + _SYNCED, _I64.pack(stop_offset))
        self.write(batch)
        with self.guard("fsync"):
            self.open().flush_wal(sync=True)

    def seal(self) -> None:
        """Note that all rows are written and synced, because the database is closed now."""
        if self._database is not None:
            with self.guard("write"):
                mark_closed(self._database)

    def close(self) -> None:
        self._reclaimer.close()
        if self._database is not None:
            close_database(self._database, self._path)
            self._database = None

    def guard(self, deed: str) -> AbstractContextManager[None]:
        """Return a context as ``Guarded``; ``deed``: verb of the operation, for the message."""
        return Guarded(deed, self._what, self._path)


class IdIndex:
    """Id index of one shard of a wheel."""

    def __init__(self, database: IdDatabase, generation: int) -> None:
        self._database = database
        self.generation = generation
        # Whether the index has all rows of source offsets below the horizon.
        self.is_whole = True
        self._prefix = prefix_of(generation)
        # Durable horizon of the store, a source offset. ``prune`` keeps all marks from it on.
        self.durable_offset = 0
        # Content of row ``WRITTEN``.
        self._written = self._count = 0
        self._rows: IdRows | None = None

    @property
    def in_use(self) -> bool:
        """Whether the shard has ids, or had ids since it was last emptied."""
        return self._rows is not None

    def recover(self, stop_offset: int, *, expected: bool, counted: bool) -> None:
        """Use the existing rows of source offsets below ``stop_offset``, and undo all later ones;
        ``is_whole`` becomes False if rows are missing. ``expected``: the shard had ids at that
        horizon; ``counted``: count the rows, and raise ``OSError`` if some are lost.
        """
        database = self._database.open()
        synced = database.get(self._prefix + _SYNCED)
        if synced is None:
            self.discard()
            self.is_whole = not expected
        elif _I64.unpack(synced)[0] < stop_offset:
            self.is_whole = False
        else:
            self._rows = IdRows(database, self._prefix)
            self.durable_offset = stop_offset
            written = database.get(self._prefix + WRITTEN)
            if written is None:
                raise OSError(f"the ids of shard {self.generation} have no number of rows")
            self._written, self._count = _WRITTEN_ROW.unpack(written)
            if counted and self._rows.count() != self._count:
                raise OSError(f"the ids of shard {self.generation} are not {self._count} rows")
            if self._written > stop_offset:
                self._cut(self._rows, stop_offset)

    def _cut(self, rows: IdRows, stop_offset: int) -> None:
        # All rows of the shard are read to find those from ``stop_offset`` on, so only if there may
        # be any.
        batch = WriteBatch(raw_mode=True)
        with self._database.guard("read"):
            count = self._count + rows.cut(batch, stop_offset)
        self._write(batch, stop_offset, count)

    def _write(self, batch: WriteBatch, written: int, count: int) -> None:
        batch.put(self._prefix + WRITTEN, _WRITTEN_ROW.pack(written, count))
        self._database.write(batch)
        self._written, self._count = written, count

    def append(
        self,
        named: Sequence[Named],
        marks: Sequence[Mark],
        stop_offset: int,
        sightings: Sequence[Sighting] = (),
    ) -> None:
        batch = WriteBatch(raw_mode=True)
        if self._rows is None:
            self._rows = IdRows(self._database.open(), self._prefix)
        with self._database.guard("read"):
            count = self._count + self._rows.put(batch, named, marks, sightings)
        self._write(batch, stop_offset, count)

    def latest_unmarked(self, record_id: bytes, below: int) -> Key | None:
        if self._rows is None:
            return None
        with self._database.guard("read"):
            return self._rows.latest_unmarked(record_id, below)

    def group_of(self, record_id: bytes) -> Group | None:
        if self._rows is None:
            return None
        with self._database.guard("read"):
            return self._rows.group_of(record_id)

    def marked_from(self, mark: int, stop_offset: int) -> list[tuple[int, Key]]:
        if self._rows is None:
            return []
        with self._database.guard("read"):
            return self._rows.marked_from(mark, stop_offset)

    def sighted_from(self, seen_by: int, stop_offset: int) -> list[tuple[int, Key]]:
        if self._rows is None:
            return []
        with self._database.guard("read"):
            return self._rows.sighted_from(seen_by, stop_offset)

    def prune(self, cursor: Cursor) -> None:
        # A crash undoes marks with offsets from the durable horizon on, so they are kept.
        if self._rows is not None:
            batch = WriteBatch(raw_mode=True)
            mark = min(cursor.offset, self.durable_offset)
            with self._database.guard("read"):
                count = self._count + self._rows.prune(batch, cursor.key[0], mark)
            if not batch.is_empty():
                self._write(batch, self._written, count)

    def discard(self) -> None:
        self._database.remove(self.generation)
        self.forget()

    def forget(self) -> None:
        """Treat the shard as one without ids; its rows in the database are not deleted."""
        self._rows = None
        self.durable_offset = self._written = self._count = 0
