"""Stores of a worker, of the kind that the settings name, and their folders on disk."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import structlog

from delayservice.base.errors import StoreError
from delayservice.config.settings import Settings
from delayservice.store.base import Store
from delayservice.store.folder import read_format, shard_name
from delayservice.store.memory import MemoryStore
from delayservice.store.offline import FORMATS, user_of
from delayservice.store.rocks import RocksOptions
from delayservice.store.rocksdb import RocksDatabase
from delayservice.store.wheel import Wheel, WheelOptions

_log = structlog.get_logger(__name__)


class Stores:
    """Factory of the stores of one worker's shards.

    All shards of a worker share one wheel or one RocksDB; in memory each has a store of its own.
    Folders are named by the worker's number, so that no topic name becomes a path. A hash of the
    topic's id identifies a shard, so that a recreated topic gets a new store.
    """

    def __init__(self, settings: Settings, index: int) -> None:
        self._path = settings.node.state_dir / settings.node.store / str(index)
        # None: in memory.
        self._shards: Wheel | RocksDatabase | None = None
        if settings.node.store == "wheel":
            self._shards = Wheel(self._path, _wheel_options(settings))
        elif settings.node.store == "rocksdb":
            self._shards = RocksDatabase(self._path, _rocks_options(settings))

    def shard(self, topic_id: str, partition: int) -> Store:
        if self._shards is None:
            return MemoryStore()
        return self._shards.store(shard_name(topic_id), partition)

    def remove(self, topic_id: str, partition: int) -> None:
        # Its records are still in Kafka.
        if self._shards is not None:
            self._shards.remove(shard_name(topic_id), partition)

    def open(self) -> frozenset[int]:
        """Open the worker's folder before its loop runs, because that may take a while after a
        crash; return the slices of which it has copies.
        """
        if self._shards is None or not self._path.is_dir():
            return frozenset()
        with suppress(StoreError):  # met again, and told, when a lane opens its store
            self._shards.open()
        return frozenset(partition for _, partition in self._shards.shards)

    def close(self) -> None:
        if self._shards is not None:
            self._shards.close()


def remove_strangers(settings: Settings) -> None:
    """Remove stores of workers that this node no longer has. They are rebuilt from Kafka. Call this
    before the workers start.
    """
    kind = settings.node.store
    home = settings.node.state_dir / kind
    wanted = {str(number) for number in range(settings.node.workers)}
    if kind == "memory" or not home.is_dir():
        return
    for folder in sorted(home.iterdir()):
        if folder.name not in wanted:
            _refuse_foreign(folder, FORMATS[kind])
            _log.warning(
                f"{kind}_removed",
                path=str(folder),
                format=str(read_format(str(folder)) or "none"),
                hint="the store belongs to a worker that is gone; its records are rebuilt from "
                "Kafka",
            )
            shutil.rmtree(folder) if folder.is_dir() else folder.unlink()


def _refuse_foreign(store: Path, newest: int) -> None:
    found, user = read_format(str(store)), user_of(str(store))
    if found is not None and found.version > newest:
        raise StoreError(
            f"{store} has format {found.version}, newer than {newest}, the newest that this "
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
