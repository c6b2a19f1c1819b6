"""Finding the folders of shards on a disk, for whoever looks at them beside or without their node.

Nothing here locks, writes or opens for writing.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from delayservice.errors import StoreError
from delayservice.store.folder import Format, parse_format

KINDS: Final = ("wheel", "rocksdb")
_LOCKS: Final = Path("/proc/locks")


class ShardFolder(NamedTuple):
    """The folder of one shard's store.

    ``shard`` is a hash of the topic's id; ``partition`` is -1 where the folder's name is no number.
    """

    path: str
    shard: str
    partition: int


def find_shards(root: Path, kinds: tuple[str, ...] = KINDS) -> list[ShardFolder]:
    """Shards of a node's state folder, of a folder of one kind in it, or the one whose folder it
    is.

    Raises:
        StoreError: there are none.
    """
    if (root / "VERSION").is_file():
        found = [root]
    else:
        homes = [root / kind for kind in kinds if (root / kind).is_dir()] or [root]
        paths = [path for home in homes for path in home.glob("*/*")]
        found = sorted(path for path in paths if path.name.isdecimal() and path.is_dir())
    if not found:
        raise StoreError(
            f"{root} holds no shard of a {' or '.join(kinds)}; name a node's state folder "
            "(node.state_dir), a folder of stores in it, or the folder of one shard (a number)"
        )
    return [_named(path) for path in found]


def _named(path: Path) -> ShardFolder:
    whole = path.resolve()
    partition = int(whole.name) if whole.name.isdecimal() else -1
    return ShardFolder(str(path), whole.parent.name, partition)


def read_format(path: str) -> Format | None:
    """What a folder says of itself; None: nothing.

    Raises:
        StoreError: it may not be read.
    """
    try:
        return parse_format(Path(path, "VERSION").read_bytes()[:64])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise StoreError(
            f"can't read {path}: {exc.strerror}; run as the user of the service, or read a copy"
        ) from exc


def user_of(path: str) -> int | None:
    """Id of the process that has a store open; None: nobody has, or this system does not say."""
    lock = Path(path, "LOCK")
    with suppress(OSError, ValueError):
        inode = os.stat(lock).st_ino  # noqa: PTH116 - beside the table of the kernel
        for line in _LOCKS.read_text("ascii").splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[-3].endswith(f":{inode}"):
                return int(words[4])
    return None
