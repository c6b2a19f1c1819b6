"""RocksDB database of all shards of a worker, with one write-ahead log and one sync for all.

``docs/internals/format-rocksdb.md`` has layout, invariants and recovery. All row keys of a shard
begin with its number, so that one range deletes its rows. Keys, big endian::

    0 u32, 'p', number u32    -> partition i32, topic          the shard that has this number
    0 u32, 'h', number u32    -> stop offset i64, count i64    its S, and its number of records
    0 u32, 'l', number u32    -> label                         its label
    0 u32, 'w'                -> state of the files            see ``Witness``
    number u32, ...                                            see ``delayservice.store.rocksdb``
"""

from __future__ import annotations

import time
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import structlog
from rocksdict import WriteBatch

from delayservice.base.errors import StoreError
from delayservice.store.files import Files
from delayservice.store.folder import StoreFolder
from delayservice.store.rocks import (
    Guarded,
    Reclaimer,
    RocksOptions,
    close_database,
    is_damage,
    open_database,
    prefix_of,
    read_rows,
)
from delayservice.store.rocks_manifest import Witness

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from rocksdict import Rdict

_log = structlog.get_logger(__name__)

FORMAT: Final = 1
DATABASE: Final = "db"
"""Name of the database's folder in the worker's folder."""

Place: TypeAlias = tuple[str, int]
"""``(topic, partition)`` of a shard: hash of the delay topic's id, and partition."""

_REBUILT: Final = "the database is put aside, and all its shards are rebuilt from Kafka"
_ROW = Struct(">IcI")
_HELD = Struct(">qq")
_PARTITION = Struct(">i")
_PLACES, _HORIZONS, _LABELS = b"p", b"h", b"l"
_SHARDS_MAX: Final = 2**32 - 2


class ShardState(NamedTuple):
    """State of one shard in a database.

    Attributes:
        number: number of the shard, with which its row keys begin.
        stop_offset: S, a source offset.
        records: number of stored records.
        label: bytes that state the contracts and cluster secrets of the stored records.
    """

    number: int
    stop_offset: int
    records: int
    label: bytes


class RocksDatabase:
    """Database of one worker. Only the worker's thread may use it.

    Args:
        path: the worker's folder.
        options: options of the database; None: the default options.

    Attributes:
        what: name of the store, for messages.
    """

    def __init__(self, path: Path, options: RocksOptions | None = None) -> None:
        self.options = options or RocksOptions()
        self.what = f"the store {path}"
        self.records = 0
        """Number of stored records of all open shards."""
        self._files = Files()
        self._folder = StoreFolder(path, "rocksdb", FORMAT, self._files)
        self._path = path
        self._database_path = path / DATABASE
        self._database: Rdict | None = None
        self._witness: Witness | None = None
        self._reclaimer = Reclaimer(self._database_path)
        self._clear()

    def _clear(self) -> None:
        self._numbers: dict[Place, int] = {}
        self._open_places: set[Place] = set()
        self._idle_s: dict[Place, float] = {}
        self._durable: dict[int, int] = {}
        self._written: dict[int, int] = {}
        self._unsynced_bytes = 0
        self.records = 0

    # --- life ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the database and read the state of all its shards, unless it is open. A damaged
        database is moved to quarantine, and an empty one is created.

        Raises:
            StoreError: another process has the folder open, it has a store of another kind or a
                newer format, or the database can't be opened for lack of space, memory, files or
                rights.
        """
        if self._database is not None:
            return
        is_known = self._folder.enter()
        try:
            if not is_known:
                self._files.remove_tree(str(self._database_path))
            if not is_known or not self._recover():
                self._start_over()
        except BaseException:
            self.abandon()
            raise

    def _recover(self) -> bool:
        if not self._database_path.is_dir():
            return False
        try:
            self._database = open_database(self._database_path, self.options)
            self._fill()
        except Exception as exc:
            if not is_damage(exc):
                raise StoreError(f"can't open the store {self._path}: {exc}") from exc
            _log.error("store_damaged", path=str(self._path), why=str(exc), hint=_REBUILT)
            return False
        return True

    def _fill(self) -> None:
        """Read number and state of every shard, so that damage of these rows is found when the
        database is opened.

        Raises:
            Exception: a row can't be read (rocksdict has no narrower class).
        """
        self._clear()
        found = _read_numbers(self.database)
        self._durable = {n: self._read_state(n).stop_offset for n in found.values()}
        self._idle_s = dict.fromkeys(found, time.monotonic())
        self._numbers = found

    def _start_over(self) -> None:
        self._release()
        if self._files.exists(str(self._database_path)):
            self._folder.quarantine(str(self._database_path), DATABASE)
        self._clear()
        self._database = open_database(self._database_path, self.options)
        self._folder.stamp()
        self._files.sync_dir(str(self._path))

    def close(self) -> None:
        """Sync, close all files, and unlock the folder, unless the database is closed."""
        try:
            if self._database is not None:
                self.sync()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close all files and unlock the folder, without a sync."""
        self._release()
        self._open_places.clear()
        self._files.close()
        self._folder.leave()

    def _release(self) -> None:
        self._reclaimer.close()
        if self._database is not None:
            close_database(self._database, self._database_path)
            self._database = self._witness = None

    @property
    def database(self) -> Rdict:
        """Return the open database.

        Raises:
            StoreError: the database is not open.
        """
        if self._database is None:
            raise StoreError(f"the store {self._path} is not open; open it first")
        return self._database

    def guard(self, deed: str) -> AbstractContextManager[None]:
        """Return a context that raises errors of RocksDB as ``StoreError``, and marks the database
        as damaged if the error may mean damage.

        Args:
            deed: verb of the operation, for the message.
        """
        return Guarded(deed, self.what, self._database_path)

    # --- shards --------------------------------------------------------------------------------

    @property
    def places(self) -> list[Place]:
        """Return the shards in the database as ``(topic, partition)``, sorted."""
        return sorted(self._numbers)

    def attach(self, place: Place) -> ShardState:
        """Open a shard for a lane, and return its state. A new shard gets a number. The database is
        opened if it is closed.

        Raises:
            StoreError: the shard is in use already, or the database can't be opened.
        """
        self.open()
        if place in self._open_places:
            raise StoreError(
                f"shard {place[0]}/{place[1]} of {self._path} is in use by this process already; "
                "close it first"
            )
        number = self._numbers.get(place)
        if number is None:
            number = self._add(place)
        with self.guard("read"):
            state = self._read_state(number)
        self._open_places.add(place)
        self._idle_s.pop(place, None)
        self.records += state.records
        return state

    def _add(self, place: Place) -> int:
        number = 1 + max(self._numbers.values(), default=0)
        if number > _SHARDS_MAX:
            raise StoreError(f"{self.what} has no number left for a shard; remove its folder")
        batch = WriteBatch(raw_mode=True)
        batch.put(_ROW.pack(0, _PLACES, number), _PARTITION.pack(place[1]) + place[0].encode())
        self.write(number, batch, 0, 0)
        self._numbers[place] = number
        self._durable[number] = 0
        return number

    def _read_state(self, number: int) -> ShardState:
        held = self.database.get(_ROW.pack(0, _HORIZONS, number))
        if held is None:
            raise OSError(f"shard {number} has no horizon")
        stop_offset, count = _HELD.unpack(held)
        label = self.database.get(_ROW.pack(0, _LABELS, number)) or b""
        return ShardState(number, stop_offset, count, bytes(label))

    def detach(self, place: Place, count: int) -> None:
        """Close a shard; the database is closed with its last open shard, and otherwise synced.
        ``count``: number of the shard's stored records.
        """
        self._open_places.discard(place)
        self._idle_s[place] = time.monotonic()
        self.records -= count
        if self._open_places:
            self.sync()
        else:
            self.close()

    def empty(self, number: int) -> None:
        """Delete all records, ids and the label of the shard ``number`` durably, and set its
        horizon to 0.
        """
        batch = WriteBatch(raw_mode=True)
        batch.delete(_ROW.pack(0, _LABELS, number))
        batch.delete_range(prefix_of(number), prefix_of(number + 1))
        self.write(number, batch, 0, 0)
        self.sync()

    def remove(self, place: Place) -> None:
        """Delete a shard and its rows, unless a lane has it open or it does not exist. If it is
        opened again, it is filled from the log.
        """
        was_open = self._database is not None
        self.open()
        if place in self._numbers and place not in self._open_places:
            self._remove(place)
            self.sync()
        if not was_open:
            self.close()

    def _remove(self, place: Place) -> None:
        number = self._numbers.pop(place)
        batch = WriteBatch(raw_mode=True)
        for kind in (_PLACES, _HORIZONS, _LABELS):
            batch.delete(_ROW.pack(0, kind, number))
        batch.delete_range(prefix_of(number), prefix_of(number + 1))
        self._write(number, batch, 0)
        self._idle_s.pop(place, None)
        self._durable.pop(number, None)
        self._reclaimer.reclaim(self.database, number)

    # --- writing -------------------------------------------------------------------------------

    def make_room(self) -> None:
        """Sync if ``sync_bytes`` were written since the last sync.

        Raises:
            StoreError: the sync failed; the process must exit.
        """
        if self._unsynced_bytes >= self.options.sync_bytes:
            self.sync()

    def write(self, number: int, batch: WriteBatch, stop_offset: int, count: int) -> None:
        """Write the rows of ``batch`` for one shard, together with its new S and number of records.

        Args:
            number: number of the shard.
            batch: the rows; the state of the shard is added to it.
            stop_offset: the new S, a source offset.
            count: the new number of records.

        Raises:
            StoreError: the disk is full or fails, or the database is damaged.
        """
        batch.put(_ROW.pack(0, _HORIZONS, number), _HELD.pack(stop_offset, count))
        self._write(number, batch, stop_offset)

    def write_label(self, number: int, label: bytes, stop_offset: int, count: int) -> None:
        """Write the label of the shard ``number`` in a batch of its own; the caller writes the
        records that it describes later. ``stop_offset``: S; ``count``: number of records.
        """
        batch = WriteBatch(raw_mode=True)
        batch.put(_ROW.pack(0, _LABELS, number), label)
        self.write(number, batch, stop_offset, count)

    def _write(self, number: int, batch: WriteBatch, stop_offset: int) -> None:
        size = batch.size_in_bytes()
        database = self.database
        with self.guard("write"):
            if self._witness is None:
                self._witness = Witness(self._database_path, database)
            self._witness.sign(batch)
            database.write(batch)
        self._unsynced_bytes += size
        self._written[number] = stop_offset

    def sync(self) -> None:
        """Remove unused shards, and make all written rows durable, and with them S of all shards.

        Raises:
            StoreError: the sync failed; the process must exit.
        """
        self._remove_unused()
        if self._written:
            with self.guard("fsync"):
                self.database.flush_wal(sync=True)
            self._durable |= self._written
            self._written = {}
            self._unsynced_bytes = 0

    def durable_offset(self, number: int) -> int:
        """Return the durable horizon, a source offset, of the shard ``number``."""
        return self._durable[number]

    def _remove_unused(self) -> None:
        """Remove shards that were not open for ``unused_s`` seconds: another node or worker has
        their slices now.
        """
        least_s = time.monotonic() - self.options.unused_s
        for place in [place for place, idle_s in self._idle_s.items() if idle_s < least_s]:
            _log.info("unused_shard_removed", shard=place[0], partition=place[1])
            self._remove(place)

    @property
    def bytes(self) -> int:
        """Return the bytes of all table files and memory tables of the database."""
        sizes = ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")
        return sum(self.database.property_int_value(name) or 0 for name in sizes)


def _read_numbers(database: Rdict) -> dict[Place, int]:
    first, stop = _ROW.pack(0, _PLACES, 0), _ROW.pack(0, _PLACES, _SHARDS_MAX + 1)
    found: dict[Place, int] = {}
    for row, value in read_rows(database, first, stop, _SHARDS_MAX):
        topic = value[_PARTITION.size :].decode("ascii")
        found[topic, _PARTITION.unpack_from(value)[0]] = _ROW.unpack(row)[2]
    return found
