"""Access of the file-based stores to the file system, in one small class.

The stores use the file system through ``Files`` alone, so that a test can record each write and
simulate every disk state that a crash may leave. Data is written at a stated position and not at
the end of the file, because bytes beyond that position are remains of a crash and are overwritten.

Failed writes and fsyncs raise ``StoreError``. Failed reads raise ``OSError``, because the caller
decides whether a missing file is damage.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from delayservice.base.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

FOLDER_MODE = 0o700
FILE_MODE = 0o600
_TWIN_HANDLES = 4


@contextmanager
def _failing(deed: str, path: str, advice: str) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise StoreError(f"can't {deed} {path}: {exc.strerror}; {advice}") from exc


def _writing(path: str) -> AbstractContextManager[None]:
    return _failing("write", path, "free space or mend the disk, nothing taken so far is lost")


def make_folder(path: Path) -> None:
    # ``Path.mkdir(parents=True)`` would set the mode of the last folder only.
    for folder in (*reversed(path.parents), path):
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)


class Files:
    """Access to files and folders by path, with a bounded number of open files.

    Args:
        handles_max: largest number of files kept open; the least recently used is closed first.
    """

    # Flags with which files are opened to be read; a file is opened once for reading and writing.
    read_flags = os.O_RDWR

    def __init__(self, handles_max: int = 256) -> None:
        self._handles: OrderedDict[str, int] = OrderedDict()
        self._handles_max = handles_max

    def twin(self) -> Files:
        """Return another ``Files`` with open files of its own, for use by another thread."""
        return Files(_TWIN_HANDLES)

    def make_dir(self, path: str) -> None:
        with _writing(path):
            make_folder(Path(path))

    def write_at(self, path: str, position: int, data: bytes) -> None:
        with _writing(path):
            handle = self._handle(path, os.O_RDWR | os.O_CREAT)
            done = os.pwrite(handle, data, position)
            while done < len(data):
                done += os.pwrite(handle, data[done:], position + done)

    def read_at(self, path: str, position: int, size: int) -> bytes:
        """Return at most ``size`` bytes from byte ``position``, fewer at the end of the file."""
        handle = self._handle(path, self.read_flags)
        data = os.pread(handle, size, position)
        while 0 < len(data) < size:
            more = os.pread(handle, size - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def size_of(self, path: str) -> int:
        """Return the size of a file in bytes; -1: it is missing."""
        try:
            return Path(path).stat().st_size
        except FileNotFoundError:
            return -1

    def cut(self, path: str, size: int) -> None:
        with _writing(path):
            os.truncate(path, size)

    def list_dir(self, path: str) -> list[str]:
        """Return the names in a folder, sorted; an empty list if the folder is missing."""
        try:
            return sorted(os.listdir(path))  # noqa: PTH208 - names are wanted, not paths
        except FileNotFoundError:
            return []

    def sync_file(self, path: str) -> None:
        """Make a file's content durable. A missing file is ignored, because it was pruned.

        Any thread may call this method, because it shares no state with the others.
        """
        self._sync(path, os.O_RDWR, os.fdatasync)

    def sync_dir(self, path: str) -> None:
        """Make the names in a folder durable. A missing folder is ignored: it was pruned."""
        self._sync(path, os.O_RDONLY | os.O_DIRECTORY, os.fsync)

    @staticmethod
    def _sync(path: str, flags: int, sync: Callable[[int], None]) -> None:
        # After a failed fsync the kernel may drop the dirty pages, and report success for the next.
        advice = "the process must exit and start again from its last horizon"
        with _failing("fsync", path, advice):
            try:
                handle = os.open(path, flags | os.O_CLOEXEC)
            except FileNotFoundError:
                return
            try:
                sync(handle)
            finally:
                os.close(handle)

    def replace(self, source: str, target: str) -> None:
        """Rename ``source`` to ``target``, atomically, replacing it. A missing ``source`` is
        ignored.
        """
        self._forget(source)
        self._forget(target)
        with _writing(target), suppress(FileNotFoundError):
            os.replace(source, target)  # noqa: PTH105 - strings all the way on this path

    def remove(self, path: str) -> None:
        self._forget(path)
        with _writing(path):
            Path(path).unlink(missing_ok=True)

    def remove_dir(self, path: str) -> None:
        with _writing(path), suppress(FileNotFoundError):
            Path(path).rmdir()

    def remove_tree(self, path: str) -> None:
        for name in self.list_dir(path):
            child = f"{path}/{name}"
            if Path(child).is_dir() and not Path(child).is_symlink():
                self.remove_tree(child)
            else:
                self.remove(child)
        self.remove_dir(path)

    def close(self) -> None:
        while self._handles:
            os.close(self._handles.popitem()[1])

    def _handle(self, path: str, flags: int) -> int:
        handle = self._handles.get(path)
        if handle is not None:
            self._handles.move_to_end(path)
            return handle
        if len(self._handles) >= self._handles_max:
            os.close(self._handles.popitem(last=False)[1])
        handle = os.open(path, flags | os.O_CLOEXEC, FILE_MODE)
        self._handles[path] = handle
        return handle

    def _forget(self, path: str) -> None:
        handle = self._handles.pop(path, None)
        if handle is not None:
            os.close(handle)
