"""The id index: which record each ``delay-id`` stands for, and which offsets marked records.

An id has one row, which is written over, so that it is found in one step whatever the id's history.
At most one record of an id is both unmarked and pending: a user record marks the one before it, and
a copy is written in the transaction that settles its original (design section 5, rules 3 and 12).
Keys, big endian::

    'n' id                              -> key_ms i64, offset i64   the record the id stands for
    'd' key_ms i64, offset i64          -> id                       the same, in key order
    'm' mark i64, key_ms i64, offset i64 -> id                      marks that H has not passed
    's'                                 -> stop offset i64          S of the last sync
    'w'                                 -> stop offset i64          up to where rows may reach

A mark deletes the first two rows of its record and keeps in 'm' what they said. So an index that a
crash left ahead of the durable horizon is cut back to it: what comes again may be read by other
contracts. For that a mark is kept until both H and the durable horizon have passed it.
"""

from __future__ import annotations

import shutil
import sys
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from rocksdict import WriteBatch

from delayservice.core.cursor import Cursor, Key
from delayservice.errors import StoreError
from delayservice.store.rocks import (
    Guarded,
    RocksOptions,
    close_database,
    open_database,
    read_keys,
    read_rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from rocksdict import Rdict

    from delayservice.store.base import Mark, Named

IDS_OPTIONS: Final = RocksOptions(
    compression="zstd",  # half the bytes of lz4, for ids are mostly hexadecimal text
    write_buffer_bytes=4 << 20,
    block_bytes=8 << 10,
    level_base_bytes=64 << 20,
    wal_bytes_max=8 << 20,
    bloom_bits=10,
)

_PRUNE_ROWS_MAX = 4_000
_SCAN_ROWS = 10_000
_SYNCED = b"s"
_WRITTEN = b"w"
_I64 = Struct(">q")
_KEY = Struct(">qq")
_DUE = Struct(">cqq")
_MARKED = Struct(">cqqq")


class IdFacts(NamedTuple):
    """One unmarked record that bears an id; ``stands_for`` is the record that the row of its id
    names, None where there is no such row.
    """

    record_id: bytes
    key: Key
    stands_for: Key | None


class MarkFacts(NamedTuple):
    """One marked record: what marked it, and the id."""

    key: Key
    mark: int
    record_id: bytes


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
        self._asked: dict[bytes, Key] = {}
        """Answers since the last rows were added: what is marked next was asked for before."""

    def put(self, batch: WriteBatch, named: Sequence[Named], marks: Sequence[Mark]) -> None:
        """Add the rows of ``Store.append``."""
        put, delete = batch.put, batch.delete
        marked = set()
        for record_id, key_ms, offset, mark in marks:
            put(_MARKED.pack(b"m", mark, key_ms, offset), record_id)
            delete(_DUE.pack(b"d", key_ms, offset))
            marked.add(offset)
        newest: dict[bytes, Key] = {}
        for record_id, key_ms, offset in named:
            if offset not in marked:
                put(_DUE.pack(b"d", key_ms, offset), record_id)
                newest[record_id] = (key_ms, offset)
        for record_id, key_ms, offset, _ in marks:
            if record_id not in newest and self._stands_for(record_id) == (key_ms, offset):
                delete(b"n" + record_id)
        for record_id, key in newest.items():
            put(b"n" + record_id, _KEY.pack(*key))
        self._asked.clear()

    def _stands_for(self, record_id: bytes) -> Key | None:
        key = self._asked.get(record_id)
        return self._find(record_id) if key is None else key

    def _find(self, record_id: bytes) -> Key | None:
        found = self._database.get(b"n" + record_id)
        return None if found is None else _KEY.unpack(found)

    def latest_unmarked(self, record_id: bytes, below: int) -> Key | None:
        """See ``Store.latest_unmarked``."""
        key = self._find(record_id)
        if key is None or key[1] >= below:
            return None
        self._asked[record_id] = key
        return key

    def marked_from(self, mark: int, stop_offset: int) -> list[tuple[int, Key]]:
        """See ``Store.marked_from``; ``stop_offset``: of the store."""
        start = _MARKED.pack(b"m", max(mark, 0), 0, 0)
        stop = _MARKED.pack(b"m", max(stop_offset, 0), 0, 0)
        found = map(_MARKED.unpack, read_keys(self._database, start, stop, sys.maxsize))
        return [(row[1], (row[2], row[3])) for row in found]

    def named_between(self, start_ms: int, stop_ms: int) -> Iterator[IdFacts]:
        """What is known of unmarked records with an id and ``start_ms <= key_ms < stop_ms``."""
        for due, record_id in self._scan(_DUE.pack(b"d", start_ms, 0), _DUE.pack(b"d", stop_ms, 0)):
            _, key_ms, offset = _DUE.unpack(due)
            yield IdFacts(record_id, (key_ms, offset), self._find(record_id))

    def marks(self) -> Iterator[MarkFacts]:
        """All marks that are kept, ascending."""
        for row, record_id in self._scan(b"m", b"n"):
            _, mark, key_ms, offset = _MARKED.unpack(row)
            yield MarkFacts((key_ms, offset), mark, record_id)

    def prune(self, batch: WriteBatch, key_ms: int, mark: int) -> None:
        """Delete, a bounded number of rows for each call, what is of no more use.

        Args:
            batch: takes the deletions.
            key_ms: records with a key below are settled.
            mark: and so are those that an offset below marked.
        """
        self._asked.clear()
        stop = _DUE.pack(b"d", key_ms, 0)
        rows = read_rows(self._database, self._due_floor, stop, _PRUNE_ROWS_MAX)
        for due, record_id in rows:
            batch.delete(due)
            if self._find(record_id) == _DUE.unpack(due)[1:]:
                batch.delete(b"n" + record_id)
        self._due_floor = _passed(self._due_floor, stop, [row[0] for row in rows])
        stop = _MARKED.pack(b"m", max(mark, 0), 0, 0)
        keys = read_keys(self._database, self._mark_floor, stop, _PRUNE_ROWS_MAX)
        for row in keys:
            batch.delete(row)
        self._mark_floor = _passed(self._mark_floor, stop, keys)

    def cut(self, batch: WriteBatch, stop_offset: int) -> None:
        """Take back what offsets from ``stop_offset`` on did: names, and marks of earlier names."""
        for row, value in self._scan(b"n", b"o"):
            if stop_offset <= _KEY.unpack(value)[1]:
                batch.delete(row)
        for row, _ in self._scan(b"d", b"e"):
            if stop_offset <= _DUE.unpack(row)[2]:
                batch.delete(row)
        for (key_ms, offset), mark, record_id in self.marks():
            if stop_offset <= max(mark, offset):
                batch.delete(_MARKED.pack(b"m", mark, key_ms, offset))
                if offset < stop_offset:
                    batch.put(b"n" + record_id, _KEY.pack(key_ms, offset))
                    batch.put(_DUE.pack(b"d", key_ms, offset), record_id)

    def _scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        while rows := read_rows(self._database, start, stop, _SCAN_ROWS):
            yield from rows
            start = rows[-1][0] + b"\0"


def _passed(floor: bytes, stop: bytes, keys: Sequence[bytes]) -> bytes:
    """Where the next search begins: deleted rows are slow to pass, so that none is passed twice."""
    return max(floor, stop if len(keys) < _PRUNE_ROWS_MAX else keys[-1])


class IdIndex:
    """The rows in a database of their own, made when the first record with an id comes.

    Args:
        path: folder of the database.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._what = f"the id index {path}"
        self._durable_offset = 0
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
        self._durable_offset = stop_offset
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
        rows = self._open()
        with self._guard("read"):
            rows.put(batch, named, marks)
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
        """Delete what the cursor has made useless, some of it now and the rest in later calls. A
        mark above the durable horizon is kept: after a crash it is taken back and comes again.
        """
        if self._rows is not None:
            batch = WriteBatch(raw_mode=True)
            mark = min(cursor.offset, self._durable_offset)
            with self._guard("read"):
                self._rows.prune(batch, cursor.key[0], mark)
            if not batch.is_empty():
                self._write(batch)

    def sync(self, stop_offset: int) -> None:
        """Make every row durable, with the offset that it speaks for, before the store's own
        horizon is written.

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

    def note_durable(self, stop_offset: int) -> None:
        """Note that the store's own horizon is durable: marks below it are not taken back."""
        self._durable_offset = stop_offset

    def discard(self) -> None:
        """Remove the index."""
        self.close()
        shutil.rmtree(self._path, ignore_errors=True)
        self._durable_offset = 0

    def close(self) -> None:
        """Release the database."""
        if self._database is not None:
            close_database(self._database, self._path)
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
        return Guarded(deed, self._what, self._path)
