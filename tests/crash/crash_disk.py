"""A recorder of every effect on the disk, and the disks that a crash may leave of them.

After a crash, an effect is kept for certain when it was made durable before: a write by an fsync
of its file, a name (created, renamed, removed) by an fsync of its folder. Any other is kept or
lost, each by itself, and a write may be kept in part.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

from delayservice.store.files import Files


@dataclass(frozen=True, slots=True)
class Effect:
    """``kind``: write, name, unname, sync or sync_dir; an inode number tells files apart."""

    kind: str
    path: str
    inode: int = -1
    position: int = 0
    data: bytes = b""


Keeps: TypeAlias = Callable[[Effect], float]
"""Share of an effect that was not made durable which survives: 0 lost, 1 kept, between: torn."""


class QuietFiles(Files):
    """The real files without fsync: for runs that do not crash."""

    def twin(self) -> Files:
        return QuietFiles(4)

    def sync_file(self, path: str) -> None:
        pass

    def sync_dir(self, path: str) -> None:
        pass


class RecordingFiles(QuietFiles):
    def __init__(self, root: Path, handles_max: int = 8) -> None:
        super().__init__(handles_max)
        self.effects: list[Effect] = []
        self._root = f"{root}/"
        self._inodes: dict[str, int] = {}
        self._next = count(1)

    def twin(self) -> Files:
        twin = RecordingFiles(Path(self._root))
        twin.effects, twin._inodes, twin._next = self.effects, self._inodes, self._next
        return twin

    def _name(self, path: str) -> str:
        return path.removeprefix(self._root)

    def make_dir(self, path: str) -> None:
        if not self.exists(path):
            self.effects.append(Effect("name", self._name(path), -next(self._next)))
        super().make_dir(path)

    def write_at(self, path: str, position: int, data: bytes) -> None:
        if path not in self._inodes:
            self._inodes[path] = next(self._next)
            self.effects.append(Effect("name", self._name(path), self._inodes[path]))
        inode = self._inodes[path]
        self.effects.append(Effect("write", self._name(path), inode, position, bytes(data)))
        super().write_at(path, position, data)

    def sync_file(self, path: str) -> None:
        self.effects.append(Effect("sync", self._name(path), self._inodes.get(path, -1)))

    def sync_dir(self, path: str) -> None:
        self.effects.append(Effect("sync_dir", self._name(path) if path != self._root[:-1] else ""))

    def replace(self, source: str, target: str) -> None:
        if source in self._inodes:
            self._inodes[target] = self._inodes.pop(source)
            self.effects.append(Effect("name", self._name(target), self._inodes[target]))
            self.effects.append(Effect("unname", self._name(source)))
        super().replace(source, target)

    def remove(self, path: str) -> None:
        if self._inodes.pop(path, None) is not None:
            self.effects.append(Effect("unname", self._name(path)))
        super().remove(path)

    def remove_dir(self, path: str) -> None:
        if self.exists(path):
            self.effects.append(Effect("unname", self._name(path)))
        super().remove_dir(path)


class LateFuture(Future[Any]):
    """Runs when it was asked for the third time, or when its result is wanted."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__()
        self._call = call
        self._asked = 0

    def done(self) -> bool:
        self._asked += 1
        if self._asked == 3:
            self._run()
        return super().done()

    def result(self, timeout: float | None = None) -> Any:
        if not super().done():
            self._run()
        return super().result(timeout)

    def _run(self) -> None:
        self.set_result(self._call())


class LateExecutor(Executor):
    """A thread that gets to run late, but at the same moment each time."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> LateFuture:
        return LateFuture(partial(fn, *args, **kwargs))


def _folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def _is_durable(effects: list[Effect], index: int) -> bool:
    effect = effects[index]
    later = effects[index + 1 :]
    if effect.kind == "write":
        return any(e.kind == "sync" and e.inode == effect.inode for e in later)
    return any(e.kind == "sync_dir" and e.path == _folder_of(effect.path) for e in later)


def leave_disk(effects: list[Effect], keeps: Keeps, root: Path) -> None:
    """Write into the empty folder ``root`` what a crash after ``effects`` may leave."""
    names: dict[str, int] = {}
    contents: dict[int, bytearray] = {}
    for index, effect in enumerate(effects):
        if effect.kind in {"sync", "sync_dir"}:
            continue
        share = 1.0 if _is_durable(effects, index) else keeps(effect)
        if effect.kind == "write":
            data = effect.data[: round(len(effect.data) * share)]
            content = contents.setdefault(effect.inode, bytearray())
            content.extend(b"\0" * (effect.position - len(content)))
            content[effect.position : effect.position + len(data)] = data
        elif share >= 0.5:
            if effect.kind == "name":
                names[effect.path] = effect.inode
            else:
                names.pop(effect.path, None)
    for path, inode in sorted(names.items()):
        if not (root / path).parent.is_dir():
            continue
        if inode < 0:
            (root / path).mkdir(exist_ok=True)
        else:
            (root / path).write_bytes(contents.get(inode, b""))
