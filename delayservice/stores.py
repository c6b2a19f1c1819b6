"""The stores of a worker, as the settings ask for them, and the folders that they live in."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import structlog

from delayservice.errors import StoreError
from delayservice.settings import Settings
from delayservice.store.base import Store
from delayservice.store.memory import MemoryStore
from delayservice.store.rocks import RocksOptions
from delayservice.store.rocksdb import RocksStore
from delayservice.store.shards import read_format, user_of, wheel_shards
from delayservice.store.wheel import FORMAT, Wheel, WheelOptions

_log = structlog.get_logger(__name__)


class Stores:
    """Makes and removes the stores of one worker's shards.

    All shards of a worker share one wheel; each has a RocksDB or a memory store of its own. Folders
    are named by numbers and by a hash of the topic's id: no path is made of a name, and a recreated
    topic gets a store of its own.

    Args:
        settings: of the node.
        index: number of the worker.
    """

    def __init__(self, settings: Settings, index: int) -> None:
        self._settings = settings
        self._kind = settings.node.store
        self._home = settings.node.state_dir / self._kind
        self._index = index
        self._wheel = Wheel(self._home / str(index), _wheel_options(settings))

    def shard(self, topic_id: str, partition: int) -> Store:
        """Return the store of one shard, not opened yet."""
        if self._kind == "memory":
            return MemoryStore()
        if self._kind == "rocksdb":
            return RocksStore(self._folder(topic_id, partition), _rocks_options(self._settings))
        return self._wheel.shard(hash_of(topic_id), partition)

    def remove(self, topic_id: str, partition: int) -> None:
        """Remove a shard's store from the disk; it is closed, and the log holds all of it."""
        if self._kind == "wheel":
            self._wheel.remove(hash_of(topic_id), partition)
        elif self._kind == "rocksdb":
            folder = self._folder(topic_id, partition)
            # A crash must not leave half a store.
            removed = folder.with_name(f"{folder.name}.removed")
            if folder.exists():
                folder.rename(removed)
            if removed.exists():
                shutil.rmtree(removed)

    def kept_slices(self) -> frozenset[int]:
        """Return the slices of which this worker finds stores on the disk."""
        if self._kind == "wheel":
            shards = wheel_shards(self._home / str(self._index))
            return frozenset(shard.partition for shard in shards if shard.partition >= 0)
        folders = self._home.glob("*/*")
        return frozenset(int(folder.name) for folder in folders if folder.name.isdecimal())

    def _folder(self, topic_id: str, partition: int) -> Path:
        return self._home / hash_of(topic_id) / str(partition)


def hash_of(topic_id: str) -> str:
    """Return what a topic is called in folders and tables of stores."""
    return hashlib.blake2b(topic_id.encode(), digest_size=12).hexdigest()


def remove_strangers(settings: Settings) -> None:
    """Remove wheels of workers that this node no longer has, and of the older formats, which had a
    folder for each shard: all of it is rebuilt from Kafka. Called before the workers start.

    Raises:
        StoreError: one is in use by another process, or of a newer format: it is left as it is.
    """
    home = settings.node.state_dir / "wheel"
    wanted = {str(number) for number in range(settings.node.workers)}
    if settings.node.store != "wheel" or not home.is_dir():
        return
    for folder in sorted(home.iterdir()):
        if folder.name not in wanted:
            stores = [folder, *folder.glob("*/")]
            for store in stores:
                _refuse_foreign(store)
            _log.warning(
                "wheel_removed",
                path=str(folder),
                formats=sorted({str(read_format(str(store)) or "none") for store in stores}),
                hint="of an older format, or of a worker that this node has no longer; what it "
                "held is rebuilt from Kafka",
            )
            shutil.rmtree(folder) if folder.is_dir() else folder.unlink()


def _refuse_foreign(store: Path) -> None:
    found, user = read_format(str(store)), user_of(str(store))
    if found is not None and found.version > FORMAT:
        raise StoreError(
            f"{store} has format {found.version}, newer than {FORMAT}, the newest that this "
            "version reads; run the newer service, or move the folder away: it is rebuilt from "
            "Kafka"
        )
    if user is not None:
        raise StoreError(f"the store {store} is in use by process {user}; stop that process")


def _wheel_options(settings: Settings) -> WheelOptions:
    wheel = settings.wheel
    return WheelOptions(
        slot_ms=wheel.slot_ms,
        buffer_bytes_max=int(wheel.buffer_bytes_max),
        near_bytes_max=int(wheel.near_bytes_max),
        sync_bytes=int(wheel.sync_bytes),
        handles_max=wheel.open_files_max,
    )


def _rocks_options(settings: Settings) -> RocksOptions:
    rocks = settings.rocksdb
    return RocksOptions(
        write_buffer_bytes=int(rocks.write_buffer_bytes),
        block_cache_bytes=int(rocks.block_cache_bytes),
        sync_bytes=int(rocks.sync_bytes),
        compression=rocks.compression,
    )
