"""A shard's RocksDB read by somebody else than its owner: every row, and records by due time."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from delayservice.store.ids import IDS_OPTIONS, IdRows
from delayservice.store.rocks import guarded_read, open_to_read, read_rows
from delayservice.store.rocksdb import RocksReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocksdict import Rdict

_ROWS: Final = 10_000


class RocksView(RocksReader):
    """``RocksReader`` with a look at all that the database holds."""

    has_horizon = False
    """Whether the database says what it holds; a new one, and one that lost its end, does not."""

    def open(self) -> int:
        """Open it as it is now, and return S; 0 where nothing says.

        Raises:
            StoreError: there is none of this format, or it is damaged.
        """
        self._check_format()
        with self._guard("open"):
            found = open_to_read(self._path / "db", self._options, self._view)
            self.has_horizon = self._attach_filled(found)
        return self._stop_offset

    @property
    def stop_offset(self) -> int:
        """S."""
        return self._stop_offset

    @property
    def records(self) -> int:
        """How many the database says that it holds."""
        return self._count

    @property
    def ids(self) -> IdRows:
        """The rows of ids."""
        return self._ids

    def rows(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows with ``start <= key < stop``; each block that is read is checked.

        Raises:
            StoreError: one can't be read.
        """
        with self._guard("read"):
            yield from all_rows(self._db, start, stop)


def all_rows(database: Rdict, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Rows with ``start <= key < stop``, in order.

    Raises:
        Exception: one can't be read (rocksdict has no narrower class).
    """
    while found := read_rows(database, start, stop, _ROWS):
        yield from found
        start = found[-1][0] + b"\0"


@contextmanager
def viewed_store(path: str) -> Iterator[RocksView]:
    """A shard's store as it is now.

    Raises:
        StoreError: there is none of this format, or it is damaged.
    """
    with TemporaryDirectory() as view:
        store = RocksView(Path(path), Path(view))
        try:
            store.open()
            yield store
        finally:
            store.close()


@contextmanager
def viewed_ids(path: str) -> Iterator[Rdict]:
    """The database of a wheel's ids as it is now.

    Raises:
        StoreError: it is missing or damaged.
    """
    with TemporaryDirectory() as view:
        with guarded_read(f"the ids {path}"):
            database = open_to_read(Path(path), replace(IDS_OPTIONS, open_files_max=-1), Path(view))
        try:
            yield database
        finally:
            database.close()
