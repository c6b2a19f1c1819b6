r"""Folder of a durable store: its lock, its format, and the quarantine for damaged files.

```
<folder>/LOCK         locked (flock) by the process that has the store open; holds its process id
<folder>/VERSION      64 bytes: "<kind> <format number>", padded with spaces; then their CRC32C, 8
                      hexadecimal digits, and a newline
<folder>/quarantine/  damaged files, the newest few, for a person to look at; never read again
```

The checksum tells a folder of another kind or a newer format from one whose VERSION is damaged. The
former is refused and left as it is; the latter is emptied and filled again from the log.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import google_crc32c
import structlog

from delayservice.base.errors import StoreError

if TYPE_CHECKING:
    from delayservice.store.files import Files

_log = structlog.get_logger(__name__)

VERSION_BYTES = 73

_WORDS_BYTES = 64

# By kind; what is older is removed, so that a failing disk is not filled. RocksDB puts a whole
# database aside.
QUARANTINE_MAX = {"wheel": 64, "rocksdb": 2}


class Format(NamedTuple):
    kind: str
    version: int

    def __str__(self) -> str:
        return f"{self.kind} {self.version}"


def version_text(kind: str, version: int) -> bytes:
    words = f"{kind} {version}".encode().ljust(_WORDS_BYTES)
    return words + _sum_line(words)


def parse_format(data: bytes) -> Format | None:
    words, checksum = data[:_WORDS_BYTES], data[_WORDS_BYTES:]
    if checksum != _sum_line(words):
        return None
    try:
        kind, number = words.decode("ascii").split()
        return Format(kind, int(number))
    except ValueError:
        return None


def _sum_line(words: bytes) -> bytes:
    return b"%08x\n" % google_crc32c.value(words)


def read_format(path: str) -> Format | None:
    """Return the format of the store in folder ``path``; None: VERSION is missing or damaged.
    Raises ``StoreError`` if it can't be read, for example for lack of rights.
    """
    try:
        return parse_format(Path(path, "VERSION").read_bytes()[:VERSION_BYTES])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise unreadable(path, exc) from exc


def unreadable(what: str, exc: OSError) -> StoreError:
    """Return the error to raise for a file that can't be read, usually for lack of rights."""
    return StoreError(
        f"can't read {what}: {exc.strerror}; run as the user of the service, or read a copy"
    )


def shard_name(topic_id: str) -> str:
    """Return the name of a topic in folders and tables of stores: a hash of its id, in hex."""
    return hashlib.blake2b(topic_id.encode(), digest_size=12).hexdigest()


class ShardFolder(NamedTuple):
    """Folder in which one shard is stored.

    Attributes:
        path: folder of the worker's wheel or database, which all its shards share.
        shard: ``shard_name`` of the delay topic; empty: unknown.
        partition: partition of the delay topic; -1: unknown.
    """

    path: str
    shard: str
    partition: int


class StoreFolder:
    """Lock, format and quarantine of one store folder, which is created if it is missing."""

    def __init__(self, path: Path, kind: str, version: int, files: Files) -> None:
        self.path = str(path)
        self._kind = kind
        self._version = version
        self._files = files
        self._lock: int | None = None

    def enter(self) -> bool:
        """Lock the folder for this process, and return whether its content is of the format that
        this code reads. If not (a new folder, an older format, no readable VERSION), the caller
        must not use the content.

        Raises:
            StoreError: another process has the folder open, or it has a store of another kind or of
                a newer format.
        """
        self._files.make_dir(self.path)
        self._take_lock()
        try:
            return self._check_version()
        except BaseException:
            self.leave()
            raise

    def stamp(self) -> None:
        """Write VERSION durably, which makes the folder valid. The caller has to make the file's
        name durable after this.
        """
        path = f"{self.path}/VERSION"
        self._files.write_at(path, 0, version_text(self._kind, self._version))
        self._files.sync_file(path)

    def leave(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def quarantine(self, path: str, name: str) -> None:
        """Move a damaged file or folder to the folder ``quarantine``, under ``name`` with a serial
        number before it, and remove the oldest ones there.
        """
        folder = f"{self.path}/quarantine"
        self._files.make_dir(folder)
        known = self._files.list_dir(folder)
        serial = 1 + max((int(n.split("-", 1)[0]) for n in known if n[:8].isdigit()), default=0)
        self._files.replace(path, f"{folder}/{serial:08d}-{name}")
        for old in known[: max(0, len(known) + 1 - QUARANTINE_MAX[self._kind])]:
            self._drop(f"{folder}/{old}")

    def _drop(self, path: str) -> None:
        if Path(path).is_dir():
            self._files.remove_tree(path)
        else:
            self._files.remove(path)

    def _take_lock(self) -> None:
        if self._lock is not None:
            raise StoreError(f"the store {self.path} is open already; close it first")
        handle = os.open(f"{self.path}/LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            owner = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(handle)
            raise StoreError(
                f"the store {self.path} is in use by process {owner}; "
                "stop that process, or give this one a data folder of its own"
            ) from exc
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        self._lock = handle

    def _check_version(self) -> bool:
        found = read_format(self.path)
        if found is None:
            return False
        kind, version = found
        if kind != self._kind:
            raise StoreError(
                f"{self.path} holds a {kind!r} store and not a {self._kind!r} one; "
                "choose the other backend or another data folder"
            )
        if version > self._version:
            raise StoreError(
                f"{self.path} has format {version}, newer than {self._version}, the newest that "
                "this version reads; run the newer service, or move the folder away: "
                "it is rebuilt from Kafka"
            )
        if version < self._version:
            _log.warning(
                "store_format_old",
                path=self.path,
                found=version,
                needed=self._version,
                hint="the store is rebuilt from Kafka",
            )
        return version == self._version
