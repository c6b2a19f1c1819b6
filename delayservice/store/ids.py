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

    'n' id                              -> key_ms i64, offset i64   current record of the id
    'd' key_ms i64, offset i64          -> id                       the same, in key order
    'm' mark i64, key_ms i64, offset i64 -> id                      marks that H has not passed
    's'                                 -> stop offset i64          S of the last sync
    'w'                                 -> stop offset i64          S of the last write

A mark deletes the rows 'n' and 'd' of its record and keeps their content in row 'm'. So after a
crash, an index that is ahead of the durable horizon can be cut back to it. This is needed because
the records from there on may be read again under other contracts. A mark is kept until H and the
durable horizon have passed its offset. An index that lacks rows below the horizon is not whole:
then the wheel starts the shard over.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

import structlog
from rocksdict import WriteBatch

from delayservice.base.errors import StoreError
from delayservice.engine.cursor import Cursor, Key
from delayservice.store.id_rows import _END, _I64, _SYNCED, WRITTEN, IdRows, synced_offset
from delayservice.store.rocks import (
    Guarded,
    Reclaimer,
    RocksOptions,
    close_database,
    is_damage,
    number_of,
    open_database,
    prefix_of,
    read_keys,
)
from delayservice.store.rocks_manifest import Witness

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from rocksdict import Rdict

    from delayservice.store.base import Mark, Named

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

    def __init__(self, path: Path) -> None:
        self._path = path
        self._what = f"the id index {path}"
        self._database: Rdict | None = None
        self._witness: Witness | None = None
        self._reclaimer = Reclaimer(path)

    def shard(self, generation: int) -> IdIndex:
        return IdIndex(self, generation)

    def recover(self, shards: Sequence[tuple[IdIndex, int, bool]]) -> None:
        """Open the database, if there is one, cut all indexes back to the horizon, and set
        ``is_whole`` of each. A damaged database is removed; then the index of each shard that had
        ids is not whole. Rows of shards that are not listed are removed.

        Args:
            shards: for each shard, its index, its horizon (a source offset), and whether it had ids
                at that horizon.

        Raises:
            StoreError: the database can't be opened for lack of space, memory, files or rights.
        """
        try:
            if self._path.is_dir():
                self.open()
                self._remove_others({ids.generation for ids, _, _ in shards})
                for ids, stop_offset, expected in shards:
                    ids.recover(stop_offset, expected=expected)
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
            self._database = open_database(self._path, IDS_OPTIONS)
        return self._database

    def _remove_others(self, generations: set[int]) -> None:
        batch = WriteBatch(raw_mode=True)
        start = b"\0"
        while keys := read_keys(self.open(), start, _END, 1):
            generation = number_of(keys[0])
            start = prefix_of(generation + 1)
            if generation and generation not in generations:
                batch.delete_range(prefix_of(generation), start)
        if not batch.is_empty():
            self.write(batch)

    def remove(self, generation: int) -> None:
        """Delete the rows of a shard, if the database is open. A crash may restore them; then
        ``recover`` deletes them.
        """
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
        database = self.open()
        with self.guard("write"):
            if self._witness is None:
                self._witness = Witness(self._path, database)
            self._witness.sign(batch)
            database.write(batch)

    def sync(self, offsets: Sequence[tuple[int, int]]) -> None:
        """Make all rows durable, together with S of each shard that has ids, by generation. The
        caller writes the horizon of the wheel after this.

        Raises:
            StoreError: the database failed; the process must exit.
        """
        if not offsets:
            return
        batch = WriteBatch(raw_mode=True)
        for generation, stop_offset in offsets:
            batch.put(prefix_of(generation) + _SYNCED, _I64.pack(stop_offset))
        self.write(batch)
        with self.guard("fsync"):
            self.open().flush_wal(sync=True)

    def close(self) -> None:
        self._reclaimer.close()
        if self._database is not None:
            close_database(self._database, self._path)
            self._database = self._witness = None

    def guard(self, deed: str) -> AbstractContextManager[None]:
        """Return a context that raises errors of RocksDB as ``StoreError``, and marks the database
        as damaged if the error may mean damage. ``deed``: verb of the operation, for the message.
        """
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
        self._rows: IdRows | None = None

    @property
    def in_use(self) -> bool:
        """Whether the shard has ids, or had ids since it was last emptied."""
        return self._rows is not None

    def recover(self, stop_offset: int, *, expected: bool) -> None:
        """Use the existing rows of source offsets below ``stop_offset``, and undo all later ones;
        ``is_whole`` becomes False if rows are missing. ``expected``: the shard had ids at that
        horizon.
        """
        database = self._database.open()
        synced = synced_offset(database, self._prefix)
        if synced is None:
            self.discard()
            self.is_whole = not expected
        elif synced < stop_offset:
            self.is_whole = False
        else:
            self._rows = IdRows(database, self._prefix)
            self._cut(self._rows, stop_offset)
            self.durable_offset = stop_offset

    def _cut(self, rows: IdRows, stop_offset: int) -> None:
        # All rows of the shard are read to find those from ``stop_offset`` on, so only if there may
        # be any.
        batch = WriteBatch(raw_mode=True)
        with self._database.guard("read"):
            written = self._database.open().get(self._prefix + WRITTEN)
            if written is None or _I64.unpack(written)[0] <= stop_offset:
                return
            rows.cut(batch, stop_offset)
        batch.put(self._prefix + WRITTEN, _I64.pack(stop_offset))
        self._database.write(batch)

    def append(self, named: Sequence[Named], marks: Sequence[Mark], stop_offset: int) -> None:
        batch = WriteBatch(raw_mode=True)
        if self._rows is None:
            self._rows = IdRows(self._database.open(), self._prefix)
        with self._database.guard("read"):
            self._rows.put(batch, named, marks)
        batch.put(self._prefix + WRITTEN, _I64.pack(stop_offset))
        self._database.write(batch)

    def latest_unmarked(self, record_id: bytes, below: int) -> Key | None:
        if self._rows is None:
            return None
        with self._database.guard("read"):
            return self._rows.latest_unmarked(record_id, below)

    def marked_from(self, mark: int, stop_offset: int) -> list[tuple[int, Key]]:
        if self._rows is None:
            return []
        with self._database.guard("read"):
            return self._rows.marked_from(mark, stop_offset)

    def prune(self, cursor: Cursor) -> None:
        # A crash undoes marks with offsets from the durable horizon on, so they are kept.
        if self._rows is not None:
            batch = WriteBatch(raw_mode=True)
            mark = min(cursor.offset, self.durable_offset)
            with self._database.guard("read"):
                self._rows.prune(batch, cursor.key[0], mark)
            if not batch.is_empty():
                self._database.write(batch)

    def discard(self) -> None:
        self._database.remove(self.generation)
        self.forget()

    def forget(self) -> None:
        """Treat the shard as one without ids; its rows in the database are not deleted."""
        self._rows = None
        self.durable_offset = 0
