"""The store that the settings ask for, and the folder that it lives in."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from delayservice.settings import Settings
from delayservice.store.base import Store
from delayservice.store.memory import MemoryStore
from delayservice.store.rocks import RocksOptions
from delayservice.store.rocksdb import RocksStore
from delayservice.store.wheel import WheelOptions, WheelStore


def make_store(settings: Settings, topic_id: str, partition: int) -> Store:
    """The store of one shard, not opened yet.

    Its folder is named by a hash of the topic's id: no path is made of a name, and a recreated
    topic gets a store of its own.
    """
    kind = settings.node.store
    if kind == "memory":
        return MemoryStore()
    folder = _folder(settings, topic_id, partition)
    if kind == "rocksdb":
        return RocksStore(folder, _rocks_options(settings))
    return WheelStore(folder, _wheel_options(settings))


def remove_store(settings: Settings, topic_id: str, partition: int) -> None:
    """Remove a shard's store from the disk; it is closed, and the log holds all of it."""
    if settings.node.store == "memory":
        return
    folder = _folder(settings, topic_id, partition)
    removed = folder.with_name(f"{folder.name}.removed")  # a crash must not leave half a store
    if folder.exists():
        folder.rename(removed)
    if removed.exists():
        shutil.rmtree(removed)


def kept_slices(settings: Settings) -> frozenset[int]:
    """The slices of which there are stores on the disk."""
    folders = (settings.node.state_dir / settings.node.store).glob("*/*")
    return frozenset(int(folder.name) for folder in folders if folder.name.isdecimal())


def _folder(settings: Settings, topic_id: str, partition: int) -> Path:
    name = hashlib.blake2b(topic_id.encode(), digest_size=12).hexdigest()
    return settings.node.state_dir / settings.node.store / name / str(partition)


def _wheel_options(settings: Settings) -> WheelOptions:
    wheel = settings.wheel
    return WheelOptions(
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
