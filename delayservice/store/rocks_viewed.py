"""Database of a running node or a backup, opened for reading only."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from delayservice.base.errors import StoreError
from delayservice.store.folder import Format, read_format
from delayservice.store.rocks import (
    RocksOptions,
    guarded_read,
    open_to_read,
)
from delayservice.store.rocks_database import FORMAT, Place, RocksDatabase

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class ViewedDatabase(RocksDatabase):
    """Database of a running node or a backup, opened without a lock; nothing is written to it.

    Args:
        path: the worker's folder.
        view: an empty folder for links to its files.
    """

    def __init__(self, path: Path, view: Path) -> None:
        # All table files are opened at once, so that no file is missing while rows are read.
        super().__init__(path, RocksOptions(open_files_max=-1))
        self._view = view

    def open(self) -> None:
        """Open the present state of the database.

        Raises:
            StoreError: the folder has no database of this format, or it is damaged.
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
        """Release the database."""
        self._release()

    def guard(self, deed: str) -> AbstractContextManager[None]:
        """Return a context that raises errors of RocksDB as ``StoreError``, without condemning."""
        del deed
        return guarded_read(self.what)


def places_in(path: Path) -> list[Place]:
    """Return the shards of a worker's database; an empty list if it can't be read."""
    with TemporaryDirectory() as view:
        database = ViewedDatabase(path, Path(view))
        with suppress(StoreError):
            database.open()
        places = database.places
        database.close()
    return places
