"""Readers of the RocksDB store of a running node or a backup: all rows, and records by due time."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from delayservice.base.errors import StoreError
from delayservice.store.folder import Format, ShardFolder, read_format
from delayservice.store.id_rows import IdRows
from delayservice.store.ids import IDS_OPTIONS
from delayservice.store.rocks import RocksOptions, all_rows, guarded_read, open_to_read
from delayservice.store.rocks_database import FORMAT, Place, RocksDatabase
from delayservice.store.rocksdb import RocksStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from rocksdict import Rdict


class ViewedDatabase(RocksDatabase):
    """Database of a running node or a backup, opened without a lock; nothing is written to it but
    ``view``, an empty folder that is filled with links to the database's files.
    """

    def __init__(self, path: Path, view: Path) -> None:
        # All table files are opened at once, so that no file is missing while rows are read.
        super().__init__(path, RocksOptions(open_files_max=-1))
        self._view = view

    def open(self) -> None:
        """Open the database in its present state, unless it is open, and read the state of its
        shards.
        """
        if self._database is not None:
            return
        found, needed = read_format(str(self._path)), Format("rocksdb", FORMAT)
        if found is None:
            raise StoreError(f"{self._path} is no folder of a store, or its VERSION is damaged")
        if found != needed:
            raise StoreError(f"{self._path} holds '{found}', and this reads '{needed}'")
        with self.guard("open"):
            self._database = open_to_read(self._database_path, self.options, self._view)
            self._fill()

    def _add(self, place: Place) -> int:
        raise StoreError(f"{self._path} holds no shard {place[0]}/{place[1]}")

    def close(self) -> None:
        self._release()

    def guard(self, deed: str) -> AbstractContextManager[None]:
        del deed
        return guarded_read(self.what)


class RocksView(RocksStore):
    """Store of one shard in a database that was opened for reading, with access to all its rows."""

    @property
    def stop_offset(self) -> int:
        return self._stop_offset

    @property
    def records(self) -> int:
        # As the database states it; it is not counted.
        return self._count

    @property
    def ids(self) -> IdRows:
        return self._ids

    def rows(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the shard's rows with ``start <= key < stop``, in order; the number of the shard is
        left out of all these keys. The checksums of the blocks that are read are verified.
        """
        prefix = self._prefix
        with self._rocks.guard("read"):
            for row, value in all_rows(self._db, prefix + start, prefix + stop):
                yield row[len(prefix) :], value


@contextmanager
def viewed_database(path: Path) -> Iterator[ViewedDatabase]:
    """Open a worker's database for reading, in its present state, without a lock.

    Raises:
        StoreError: the folder has no database of this format, or the database is damaged.
    """
    with TemporaryDirectory() as view:
        rocks = ViewedDatabase(path, Path(view))
        try:
            rocks.open()
            yield rocks
        finally:
            rocks.close()


@contextmanager
def viewed_store(shard: ShardFolder) -> Iterator[RocksView]:
    """Open a shard's store for reading; raises as ``viewed_database``, or if it lacks the shard."""
    with viewed_database(Path(shard.path)) as rocks:
        yield view_of(rocks, shard)


def view_of(rocks: ViewedDatabase, shard: ShardFolder) -> RocksView:
    store = RocksView(rocks, shard.shard, shard.partition)
    store.open()
    return store


@contextmanager
def viewed_ids(path: str) -> Iterator[Rdict]:
    """Open a wheel's id database for reading; raises as ``viewed_database``."""
    with TemporaryDirectory() as view:
        with guarded_read(f"the ids {path}"):
            database = open_to_read(Path(path), replace(IDS_OPTIONS, open_files_max=-1), Path(view))
        try:
            yield database
        finally:
            database.close()
