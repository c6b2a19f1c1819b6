"""The id index: which records bear a ``delay-id``, and which offset marked them.

Rows are pure functions of the log and of the contracts by which it is read, so writing one twice is
harmless; a look-up is bounded by the asking offset. An index that a crash left ahead of the durable
horizon is cut back to it: what comes again may be read by other contracts. Keys, big endian::

    'i' size(id) u16, id, offset i64, 0     -> key_ms i64               the record
    'i' size(id) u16, id, offset i64, 1     -> mark i64                 what marked it
    'd' key_ms i64, offset i64              -> id                       what to delete when due
    'm' mark i64, key_ms i64, offset i64    -> (empty)                  marks in order
    's'                                     -> stop offset i64          what a sync spoke for
    'w'                                     -> stop offset i64          up to where rows may reach

Record and mark are rows of their own so that no write has to read. Rows of past records are
deleted by walking 'd' below K, a bounded number for each call.
"""

from __future__ import annotations

import shutil
import sys
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from rocksdict import WriteBatch

from delayservice.core.cursor import Key
from delayservice.errors import StoreError
from delayservice.store.rocks import (
    RocksOptions,
    guarded,
    open_database,
    read_keys,
    read_rows,
    rows_down_from,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from rocksdict import Rdict

    from delayservice.core.cursor import Cursor
    from delayservice.store.base import Mark, Named

IDS_OPTIONS: Final = RocksOptions(
    compression="zstd",  # half the bytes of lz4, for ids are mostly hexadecimal text
    write_buffer_bytes=4 << 20,
    block_bytes=8 << 10,
    level_base_bytes=64 << 20,
    wal_bytes_max=8 << 20,
)

_PRUNE_ROWS_MAX = 2000
_SCAN_ROWS = 10_000
_SYNCED = b"s"
_WRITTEN = b"w"
_I64 = Struct(">q")
_ID_HEAD = Struct(">cH")
_ID_TAIL = Struct(">qB")
_DUE = Struct(">cqq")
_MARKED = Struct(">cqqq")
_IS_RECORD, _IS_MARK = 0, 1


class IdFacts(NamedTuple):
    """One record that bears an id; ``listed_ms`` is its key by the row of its id, ``mark`` what
    marked it, each None where there is no such row.
    """

    record_id: bytes
    key_ms: int
    offset: int
    listed_ms: int | None
    mark: int | None


def synced_offset(database: Rdict) -> int | None:
    """The stop offset that a wheel's ids had at their last sync; None: they had none."""
    found = database.get(_SYNCED)
    return None if found is None else int(_I64.unpack(found)[0])


class IdRows:
    """The rows themselves, in whatever database they are kept."""

    def __init__(self, database: Rdict) -> None:
        self._database = database
        self._due_floor = _DUE.pack(b"d", 0, 0)
        self._mark_floor = _MARKED.pack(b"m", 0, 0, 0)

    @staticmethod
    def put(batch: WriteBatch, named: Sequence[Named], marks: Sequence[Mark]) -> None:
        """Add the rows of ``Store.append``."""
        for record_id, key_ms, offset in named:
            head = _ID_HEAD.pack(b"i", len(record_id)) + record_id
            batch.put(head + _ID_TAIL.pack(offset, _IS_RECORD), _I64.pack(key_ms))
            batch.put(_DUE.pack(b"d", key_ms, offset), record_id)
        for record_id, key_ms, offset, mark in marks:
            head = _ID_HEAD.pack(b"i", len(record_id)) + record_id
            batch.put(head + _ID_TAIL.pack(offset, _IS_MARK), _I64.pack(mark))
            batch.put(_MARKED.pack(b"m", mark, key_ms, offset), b"")

    def latest_unmarked(self, record_id: bytes, below: int) -> Key | None:
        """See ``Store.latest_unmarked``; ``below`` must not be above the stop offset."""
        head = _ID_HEAD.pack(b"i", len(record_id)) + record_id
        # Backwards, so that the mark of an offset comes before its record.
        size = len(head) + _ID_TAIL.size
        marked = -1
        for key, value in rows_down_from(self._database, head + _ID_TAIL.pack(below, 0)):
            if len(key) != size or not key.startswith(head):
                return None
            offset, kind = _ID_TAIL.unpack(key[len(head) :])
            number = _I64.unpack(value)[0]
            if offset >= below:
                continue
            if kind == _IS_MARK:
                marked = offset if number < below else -1
            elif marked != offset:
                return (number, offset)
        return None

    def marked_from(self, mark: int, stop_offset: int) -> list[tuple[int, Key]]:
        """See ``Store.marked_from``; marks at or above ``stop_offset`` are of an earlier life."""
        start = _MARKED.pack(b"m", max(mark, 0), 0, 0)
        stop = _MARKED.pack(b"m", max(stop_offset, 0), 0, 0)
        found = map(_MARKED.unpack, read_keys(self._database, start, stop, sys.maxsize))
        return [(row[1], (row[2], row[3])) for row in found]

    def named_between(self, start_ms: int, stop_ms: int) -> Iterator[IdFacts]:
        """What is known of every record with an id and ``start_ms <= key_ms < stop_ms``."""
        start, stop = _DUE.pack(b"d", start_ms, 0), _DUE.pack(b"d", stop_ms, 0)
        for due, record_id in self._scan(start, stop):
            _, key_ms, offset = _DUE.unpack(due)
            head = _ID_HEAD.pack(b"i", len(record_id)) + record_id
            listed = self._number(head + _ID_TAIL.pack(offset, _IS_RECORD))
            mark = self._number(head + _ID_TAIL.pack(offset, _IS_MARK))
            yield IdFacts(record_id, key_ms, offset, listed, mark)

    def _number(self, row: bytes) -> int | None:
        found = self._database.get(row)
        return None if found is None else int(_I64.unpack(found)[0])

    def prune(self, batch: WriteBatch, cursor: Cursor) -> None:
        """Delete, a bounded number of rows for each call, what the cursor has made useless."""
        stop = _DUE.pack(b"d", cursor.key[0], 0)
        for due, record_id in read_rows(self._database, self._due_floor, stop, _PRUNE_ROWS_MAX):
            _, _, offset = _DUE.unpack(due)
            head = _ID_HEAD.pack(b"i", len(record_id)) + record_id
            batch.delete(head + _ID_TAIL.pack(offset, _IS_RECORD))
            batch.delete(head + _ID_TAIL.pack(offset, _IS_MARK))
            batch.delete(due)
            self._due_floor = due
        stop = _MARKED.pack(b"m", max(cursor.offset, 0), 0, 0)
        for row in read_keys(self._database, self._mark_floor, stop, _PRUNE_ROWS_MAX):
            batch.delete(row)
            self._mark_floor = row

    def cut(self, batch: WriteBatch, stop_offset: int) -> None:
        """Delete what offsets from ``stop_offset`` on added: names, marks, and when to delete."""
        for key, value in self._scan(b"i", b"j"):
            offset, kind = _ID_TAIL.unpack_from(key, len(key) - _ID_TAIL.size)
            if stop_offset <= (_I64.unpack(value)[0] if kind == _IS_MARK else offset):
                batch.delete(key)
        for key, _ in self._scan(b"d", b"e"):
            if stop_offset <= _DUE.unpack(key)[2]:
                batch.delete(key)
        batch.delete_range(_MARKED.pack(b"m", max(stop_offset, 0), 0, 0), b"n")

    def _scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        while rows := read_rows(self._database, start, stop, _SCAN_ROWS):
            yield from rows
            start = rows[-1][0] + b"\0"


class IdIndex:
    """The rows in a database of their own, made when the first record with an id comes.

    Args:
        path: folder of the database.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database: Rdict | None = None
        self._rows: IdRows | None = None

    @property
    def in_use(self) -> bool:
        """Whether there is an index."""
        return self._rows is not None

    def recover(self, stop_offset: int, *, expected: bool) -> bool:
        """Open what a life before left.

        Args:
            stop_offset: the horizon that slots and index are to agree on.
            expected: whether ids had been synced by then.

        Returns:
            Whether everything below ``stop_offset`` is here, and nothing else.
        """
        if not self._path.is_dir():
            return not expected
        try:
            self._open()
            if self._database is None:
                return False
            synced = self._database.get(_SYNCED)
        except Exception:  # noqa: BLE001 - rocksdict raises no narrower class
            synced = None
        if synced is None and not expected:
            self.discard()
            return True
        if synced is None or _I64.unpack(synced)[0] < stop_offset:
            return False
        try:
            self._cut(stop_offset)
        except StoreError:
            return False
        return True

    def _cut(self, stop_offset: int) -> None:
        """A scan of all rows, but only where a life ended without its last sync."""
        batch = WriteBatch(raw_mode=True)
        with self._guard("read"):
            written = self._database.get(_WRITTEN) if self._database is not None else None
            if written is None or _I64.unpack(written)[0] <= stop_offset:
                return
            self._open().cut(batch, stop_offset)
        batch.put(_WRITTEN, _I64.pack(stop_offset))
        self._write(batch)

    def append(self, named: Sequence[Named], marks: Sequence[Mark], stop_offset: int) -> None:
        """See ``Store.append``."""
        batch = WriteBatch(raw_mode=True)
        self._open().put(batch, named, marks)
        batch.put(_WRITTEN, _I64.pack(stop_offset))
        self._write(batch)

    def latest_unmarked(self, record_id: bytes, below: int) -> Key | None:
        """See ``Store.latest_unmarked``."""
        if self._rows is None:
            return None
        with self._guard("read"):
            return self._rows.latest_unmarked(record_id, below)

    def marked_from(self, mark: int, stop_offset: int) -> list[tuple[int, Key]]:
        """See ``Store.marked_from``."""
        if self._rows is None:
            return []
        with self._guard("read"):
            return self._rows.marked_from(mark, stop_offset)

    def prune(self, cursor: Cursor) -> None:
        """Delete what the cursor has made useless, some of it now and the rest in later calls."""
        if self._rows is not None:
            batch = WriteBatch(raw_mode=True)
            with self._guard("read"):
                self._rows.prune(batch, cursor)
            if not batch.is_empty():
                self._write(batch)

    def sync(self, stop_offset: int) -> None:
        """Make every row durable, with the offset that it speaks for.

        Raises:
            StoreError: the database failed; the process must exit.
        """
        if self._database is None:
            return
        batch = WriteBatch(raw_mode=True)
        batch.put(_SYNCED, _I64.pack(stop_offset))
        self._write(batch)
        with self._guard("fsync"):
            self._database.flush_wal(sync=True)

    def discard(self) -> None:
        """Remove the index."""
        self.close()
        shutil.rmtree(self._path, ignore_errors=True)

    def close(self) -> None:
        """Release the database."""
        if self._database is not None:
            self._database.close()
        self._database = self._rows = None

    def _open(self) -> IdRows:
        if self._rows is None:
            self._database = open_database(self._path, IDS_OPTIONS)
            self._rows = IdRows(self._database)
        return self._rows

    def _write(self, batch: WriteBatch) -> None:
        if self._database is None:
            raise StoreError(f"the id index {self._path} is not open; open the store first")
        with self._guard("write"):
            self._database.write(batch)

    def _guard(self, deed: str) -> AbstractContextManager[None]:
        return guarded(deed, f"the id index {self._path}", self._path)
