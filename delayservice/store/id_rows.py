"""Rows of one shard's id index, in RocksDB.

The index has the key of the current record of each ``delay-id``, the same in key order, and the
marked records by mark. The docstring of ``ids`` has the layout of the rows.
"""

from __future__ import annotations

import sys
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from rocksdict import WriteBatch

from delayservice.engine.cursor import Key
from delayservice.store.rocks import all_rows, read_keys, read_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rocksdict import Rdict

    from delayservice.store.base import Mark, Named


_PRUNE_ROWS_MAX = 4_000
_END: Final = b"\xff" * 5
_SYNCED = b"s"
WRITTEN = b"w"


_I64 = Struct(">q")
_KEY = Struct(">qq")
_DUE = Struct(">cqq")
_MARKED = Struct(">cqqq")


class IdFacts(NamedTuple):
    """Record with an id and without a mark. ``stands_for`` is the key of the current record of the
    id: the same key, or that of a later record; None: the id has no current record, which is an
    inconsistency.
    """

    record_id: bytes
    key: Key
    stands_for: Key | None


class MarkFacts(NamedTuple):
    """Marked record: its key, its mark (source offset of its canceller), and its id."""

    key: Key
    mark: int
    record_id: bytes


def synced_offset(database: Rdict, prefix: bytes) -> int | None:
    """Return S at the last sync of a shard's id index in a wheel; None: it was never synced."""
    found = database.get(prefix + _SYNCED)
    return None if found is None else int(_I64.unpack(found)[0])


class IdRows:
    """Rows of one shard's id index, in the id database of a wheel or in the database of a RocksDB
    store. ``prefix``: first bytes of all keys of this shard.
    """

    def __init__(self, database: Rdict, prefix: bytes) -> None:
        self._database = database
        self._prefix = prefix
        self._names = prefix + b"n"
        self._due_floor = self._due(0, 0)
        self._mark_floor = self._marked(0, 0, 0)
        # By id, what ``latest_unmarked`` has returned since rows were last added: the next marks
        # are for the same ids.
        self._asked: dict[bytes, Key] = {}

    def _due(self, key_ms: int, offset: int) -> bytes:
        return self._prefix + _DUE.pack(b"d", key_ms, offset)

    def _marked(self, mark: int, key_ms: int, offset: int) -> bytes:
        return self._prefix + _MARKED.pack(b"m", mark, key_ms, offset)

    def _key_of(self, due: bytes) -> Key:
        _, key_ms, offset = _DUE.unpack_from(due, len(self._prefix))
        return key_ms, offset

    def put(self, batch: WriteBatch, named: Sequence[Named], marks: Sequence[Mark]) -> None:
        """Add to ``batch`` the writes for the ids and marks of one ``Store.append``. A marked
        record is no longer the current record of its id.
        """
        put, delete = batch.put, batch.delete
        marked = set()
        for record_id, key_ms, offset, mark in marks:
            put(self._marked(mark, key_ms, offset), record_id)
            delete(self._due(key_ms, offset))
            marked.add(offset)
        newest: dict[bytes, Key] = {}
        for record_id, key_ms, offset in named:
            if offset not in marked:
                put(self._due(key_ms, offset), record_id)
                newest[record_id] = (key_ms, offset)
        for record_id, key_ms, offset, _ in marks:
            if record_id not in newest and self._stands_for(record_id) == (key_ms, offset):
                delete(self._names + record_id)
        for record_id, key in newest.items():
            put(self._names + record_id, _KEY.pack(*key))
        self._asked.clear()

    def _stands_for(self, record_id: bytes) -> Key | None:
        key = self._asked.get(record_id)
        return self._find(record_id) if key is None else key

    def _find(self, record_id: bytes) -> Key | None:
        found = self._database.get(self._names + record_id)
        return None if found is None else _KEY.unpack(found)

    def latest_unmarked(self, record_id: bytes, below: int) -> Key | None:
        key = self._find(record_id)
        if key is None or key[1] >= below:
            return None
        self._asked[record_id] = key
        return key

    def marked_from(self, mark: int, stop_offset: int) -> list[tuple[int, Key]]:
        """Return ``(mark, key)`` of records with marks in ``[mark, stop_offset)``, source offsets,
        ascending.
        """
        start = self._marked(max(mark, 0), 0, 0)
        stop = self._marked(max(stop_offset, 0), 0, 0)
        found = map(self._mark_of, read_keys(self._database, start, stop, sys.maxsize))
        return [(mark, key) for key, mark in found]

    def _mark_of(self, row: bytes) -> tuple[Key, int]:
        _, mark, key_ms, offset = _MARKED.unpack_from(row, len(self._prefix))
        return (key_ms, offset), mark

    def named_between(self, start_ms: int, stop_ms: int) -> Iterator[IdFacts]:
        """Yield the unmarked records with an id and a key time in ``[start_ms, stop_ms)``, epoch
        ms, in key order.
        """
        start, stop = self._due(start_ms, 0), self._due(stop_ms, 0)
        for due, record_id in all_rows(self._database, start, stop):
            yield IdFacts(record_id, self._key_of(due), self._find(record_id))

    def marks(self) -> Iterator[MarkFacts]:
        for row, record_id in all_rows(self._database, self._prefix + b"m", self._names):
            yield MarkFacts(*self._mark_of(row), record_id)

    def prune(self, batch: WriteBatch, key_ms: int, mark: int) -> None:
        """Add to ``batch`` the deletions of rows of records with key times below ``key_ms`` and of
        marks below the source offset ``mark``: ``_PRUNE_ROWS_MAX`` of each at most in each call.
        """
        self._asked.clear()
        stop = self._due(key_ms, 0)
        rows = read_rows(self._database, self._due_floor, stop, _PRUNE_ROWS_MAX)
        for due, record_id in rows:
            batch.delete(due)
            if self._find(record_id) == self._key_of(due):
                batch.delete(self._names + record_id)
        self._due_floor = _passed(self._due_floor, stop, [row[0] for row in rows])
        stop = self._marked(max(mark, 0), 0, 0)
        keys = read_keys(self._database, self._mark_floor, stop, _PRUNE_ROWS_MAX)
        for row in keys:
            batch.delete(row)
        self._mark_floor = _passed(self._mark_floor, stop, keys)

    def cut(self, batch: WriteBatch, stop_offset: int) -> None:
        """Add to ``batch`` the writes that undo all records and marks with source offsets from
        ``stop_offset`` on; a record that loses its mark is current again.
        """
        for row, value in all_rows(self._database, self._names, self._prefix + b"o"):
            if stop_offset <= _KEY.unpack(value)[1]:
                batch.delete(row)
        for row, _ in all_rows(self._database, self._prefix + b"d", self._prefix + b"e"):
            if stop_offset <= self._key_of(row)[1]:
                batch.delete(row)
        for (key_ms, offset), mark, record_id in self.marks():
            if stop_offset <= max(mark, offset):
                batch.delete(self._marked(mark, key_ms, offset))
                if offset < stop_offset:
                    batch.put(self._names + record_id, _KEY.pack(key_ms, offset))
                    batch.put(self._due(key_ms, offset), record_id)


def _passed(floor: bytes, stop: bytes, keys: Sequence[bytes]) -> bytes:
    # The next prune begins its search here: RocksDB is slow to pass deleted rows.
    return max(floor, stop if len(keys) < _PRUNE_ROWS_MAX else keys[-1])
