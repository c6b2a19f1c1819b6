"""Search for the store folders of shards on a disk, for tools that read them while a node runs or
after it has stopped.

No file is locked, written, or opened for writing.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from delayservice.base.errors import StoreError
from delayservice.store.folder import ShardFolder, read_format
from delayservice.store.rocks_database import DATABASE
from delayservice.store.rocks_view import viewed_database
from delayservice.store.wheel.horizon import NAME, HorizonDamagedError, read_horizon

__all__ = ["ShardFolder", "find_shards", "find_stores", "kept_shards", "user_of", "wheel_shards"]

KINDS: Final = ("wheel", "rocksdb")
_LOCKS: Final = Path("/proc/locks")


def find_shards(root: Path, kinds: tuple[str, ...] = KINDS) -> list[ShardFolder]:
    """Return the shards of all store folders in ``root``. A folder whose shards can't be listed
    gives one entry, with an empty topic and partition -1.

    Args:
        root: a node's state folder, the folder of one store kind in it, or that of one worker.
        kinds: store kinds to look for, if ``root`` is a node's state folder.

    Raises:
        StoreError: there are no store folders.
    """
    folders = find_stores(root, kinds)
    return [shard for folder in folders for shard in _shards_of(folder)]


def find_stores(root: Path, kinds: tuple[str, ...] = KINDS) -> list[Path]:
    """Return the store folders in ``root``, sorted; ``root`` itself if it is one.

    Args:
        root: a node's state folder, the folder of one store kind in it, or that of one worker.
        kinds: store kinds to look for, if ``root`` is a node's state folder.

    Raises:
        StoreError: there are no store folders.
    """
    if (root / "VERSION").is_file():
        return [root]
    homes = [root / kind for kind in kinds if (root / kind).is_dir()] or [root]
    found = [path for home in homes for path in home.glob("*")]
    folders = sorted(path for path in found if path.name.isdecimal() and _may_be_store(path))
    if not folders:
        raise StoreError(
            f"{root} holds no shard of a {' or '.join(kinds)}; name a node's state folder "
            "(node.state_dir), a folder of stores in it, or one of those (a number)"
        )
    return folders


def _may_be_store(path: Path) -> bool:
    """Return whether a folder contains files of a store. Its name is not enough, because other
    programs also name folders by numbers.
    """
    names = ("VERSION", NAME, DATABASE)
    return path.is_dir() and any((path / name).exists() for name in names)


def _shards_of(folder: Path) -> list[ShardFolder]:
    return kept_shards(folder) or [ShardFolder(str(folder), "", -1)]


def kept_shards(folder: Path) -> list[ShardFolder]:
    """Return the shards in a worker's folder, which contains a wheel or a RocksDB store, sorted; an
    empty list if there are none, or the folder can't be read.
    """
    found = read_format(str(folder))
    if found is not None and found.kind == "rocksdb":
        with suppress(StoreError), viewed_database(folder) as rocks:
            return [ShardFolder(str(folder), *place) for place in rocks.places]
        return []
    return wheel_shards(folder)


def wheel_shards(folder: Path) -> list[ShardFolder]:
    """Return the shards that the horizon file of the wheel in ``folder`` lists, sorted; an empty
    list if the file is missing or damaged.
    """
    try:
        rows = read_horizon(str(folder)).shards
    except (OSError, HorizonDamagedError):
        return []
    return sorted(ShardFolder(str(folder), row.topic, row.partition) for row in rows)


def user_of(path: str) -> int | None:
    """Return the id of the process that has the store in folder ``path`` open; None: it is closed,
    or unknown.
    """
    lock = Path(path, "LOCK")
    with suppress(OSError, ValueError):
        inode = os.stat(lock).st_ino  # noqa: PTH116 - beside the table of the kernel
        for line in _LOCKS.read_text("ascii").splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[-3].endswith(f":{inode}"):
                return int(words[4])
    return None
