"""Shards of one worker in one folder: the part that the wheel and RocksDB have in common.

A folder holds the stores of all shards of one worker: one lock, one sync, one recovery. The engines
(``delayservice.store.wheel``, ``delayservice.store.rocksdb``) differ in how rows lie on the disk.
Only the worker's thread may use them.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

import structlog

from delayservice.base.errors import StoreDamagedError, StoreError
from delayservice.store.base import Store
from delayservice.store.folder import StoreFolder

if TYPE_CHECKING:
    from delayservice.store.files import Files

_log = structlog.get_logger(__name__)

# ``(topic, partition)`` of a shard: hash of the delay topic's id, and partition.
ShardName: TypeAlias = tuple[str, int]


@dataclass(eq=False, slots=True)
class ShardState:
    """State of one shard in its folder; engines add what they need."""

    topic: str
    partition: int
    # Number of the shard in its folder.
    number: int
    # S, a source offset: all records below are stored.
    stop_offset: int = 0
    durable_offset: int = 0
    label: bytes = b""
    # Number of stored records, including settled ones that are not pruned yet.
    pending: int = 0
    is_open: bool = False
    # Time at which the shard was closed, or loaded at the start, monotonic seconds.
    idle_s: float = 0.0


State = TypeVar("State", bound=ShardState)


class WorkerShards(ABC, Generic[State]):
    """Shards of one worker, by name; a shard is open while a lane uses it.

    Args:
        path: folder of the shards, created if it is missing.
        kind: name of the engine, as in VERSION, with the format ``version``.
        unused_s: seconds after which a shard that is not open is removed, because another node or
            worker has its slice now.
    """

    def __init__(self, path: Path, kind: str, version: int, files: Files, unused_s: float) -> None:
        self.path = str(path)
        self.shards: dict[ShardName, State] = {}
        # Number of stored records of all shards.
        self.records = 0
        self._files = files
        self._folder = StoreFolder(path, kind, version, files)
        self._unused_s = unused_s
        self._is_open = False
        # Whether this is a snapshot that is only read: damage is raised, and not mended.
        self.is_view = False

    # --- engine --------------------------------------------------------------------------------

    @abstractmethod
    def store(self, topic: str, partition: int) -> Store:
        """Return the store of a shard, not opened yet."""

    @abstractmethod
    def _recover(self) -> bool:
        """Fill ``shards`` from the folder, and return True; False: there is nothing, or it is
        damaged. Raises ``StoreError`` if that is unknown, for example for lack of rights.
        """

    @abstractmethod
    def _start_over(self, *, is_damaged: bool) -> None:
        """Make the folder one without shards, durably, whatever it holds; ``is_damaged``: it is of
        this format.
        """

    @abstractmethod
    def _create(self, topic: str, partition: int) -> State:
        """Return the state of a new shard."""

    @abstractmethod
    def _clear(self, shard: State) -> None:
        """Delete all records, ids and the label of a shard, and set its S to 0."""

    @abstractmethod
    def _drop(self, shard: State) -> None:
        """Delete a shard, with all that ``_clear`` deletes."""

    @abstractmethod
    def sync(self) -> None:
        """Make all shards durable, and publish S of each; after an error, the process must exit."""

    @abstractmethod
    def check(self) -> bool:
        """Count the rows of all shards in a snapshot, and return whether none are lost; a shard of
        which some are can't be attached then. Raises ``StoreDamagedError`` if all shards are
        concerned.
        """

    @abstractmethod
    def _seal(self) -> None:
        """Note that everything was written and synced, because the folder is closed now."""

    @abstractmethod
    def _release(self) -> None:
        """Close what the engine has open, without a sync."""

    def sync_soon(self) -> None:
        self.sync()

    def _raise_in_view(self, why: str) -> None:
        if self.is_view:
            raise StoreDamagedError(f"{why}; a node that opens it rebuilds it from Kafka")

    # --- life ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the folder, unless it is open. If its content can't be used, start over with no
        shards.

        Raises:
            StoreError: another process has the folder open, it has a store of another kind or a
                newer format, or it can't be opened for lack of space, memory, files or rights.
        """
        if self._is_open:
            return
        is_known = self._folder.enter()
        try:
            self._forget_shards()
            if not is_known or not self._recover():
                self._forget_shards()
                self._start_over(is_damaged=is_known)
        except BaseException:
            self.abandon()
            raise
        self._is_open = True
        for shard in self.shards.values():
            shard.idle_s = time.monotonic()

    def _forget_shards(self) -> None:
        self.shards = {}
        self.records = 0

    def close(self) -> None:
        if self._is_open:
            try:
                if not self.is_view:
                    self.sync()
                    self._seal()
            finally:
                self.abandon()

    def abandon(self) -> None:
        """Close all files and unlock the folder, without a sync of what was appended."""
        self._release()
        for shard in self.shards.values():
            shard.is_open = False
        self._files.close()
        self._folder.leave()
        self._is_open = False

    # --- shards --------------------------------------------------------------------------------

    def attach(self, topic: str, partition: int) -> State:
        """Open a shard for a lane, and the folder if it is closed."""
        self.open()
        shard = self.shards.get((topic, partition))
        if shard is None:
            shard = self.shards[topic, partition] = self._create(topic, partition)
        elif shard.is_open:
            raise StoreError(
                f"shard {topic}/{partition} of {self.path} is in use by this process already; "
                "close it first"
            )
        shard.is_open = True
        return shard

    def detach(self, shard: State) -> None:
        """Close a shard; the folder is closed with its last open shard, else a sync is started."""
        shard.is_open = False
        shard.idle_s = time.monotonic()
        if any(other.is_open for other in self.shards.values()):
            self.sync_soon()
        else:
            self.close()

    def start_over(self, shard: State) -> None:
        """Delete all records, ids and the label of a shard durably, and set its horizon to 0."""
        self._clear(shard)
        self.sync()

    def remove(self, topic: str, partition: int) -> None:
        """Delete a shard, unless a lane has it open. Opened again, it is filled from the log."""
        was_open = self._is_open
        self.open()
        shard = self.shards.get((topic, partition))
        if shard is not None and not shard.is_open:
            self._remove(shard)
            self.sync_soon()
        if not was_open:
            self.close()

    def _remove(self, shard: State) -> None:
        del self.shards[shard.topic, shard.partition]
        self._drop(shard)

    def _remove_unused(self) -> None:
        least_s = time.monotonic() - self._unused_s
        for shard in list(self.shards.values()):
            if not shard.is_open and shard.idle_s < least_s:
                _log.info("unused_shard_removed", shard=shard.topic, partition=shard.partition)
                self._remove(shard)

    def count(self, shard: State, records: int) -> None:
        """Add ``records``, which may be negative, to the number of a shard's stored records."""
        shard.pending += records
        self.records += records


class ShardStore(Store, Generic[State]):
    """Store of one shard among those of its worker."""

    def __init__(self, shards: WorkerShards[State], topic: str, partition: int) -> None:
        self._name = topic, partition
        self._shards = shards
        self._attached: State | None = None

    @property
    def _shard(self) -> State:
        if self._attached is None:
            raise StoreError(f"the store of shard {self._name} is not open; open it first")
        return self._attached

    def open(self) -> int:
        shard = self._attached = self._shards.attach(*self._name)
        self._begin(shard)
        return shard.stop_offset

    def _begin(self, shard: State) -> None:
        """Prepare for a shard as it is when it was opened or emptied."""

    @property
    def stop_offset(self) -> int:
        """S, a source offset."""
        return self._shard.stop_offset

    @property
    def label(self) -> bytes:
        return self._shard.label

    def reset(self) -> None:
        self._shards.start_over(self._shard)
        self._begin(self._shard)

    def close(self) -> None:
        if self._attached is not None:
            shard, self._attached = self._attached, None
            self._shards.detach(shard)
