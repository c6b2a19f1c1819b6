"""Reading of the stores on a disk, wheel or RocksDB, by another process: of a running node, of one
that has stopped, or of a backup.

A store is opened as its node opens it, in a snapshot: a temporary folder with links to the files
that never change, or of which only the known part is read, and copies of the others. So nothing in
the folder itself is locked or written. A wheel is read in the state of its last sync, RocksDB in
its present state.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple, TypeAlias

import structlog

from delayservice.base.errors import StoreDamagedError, StoreError
from delayservice.contract.entry import OFFSET_MAX
from delayservice.contract.times import DUE_STOP_MS
from delayservice.replicas.digest_rows import Damage
from delayservice.store.base import Frame
from delayservice.store.files import Files
from delayservice.store.folder import ShardFolder, read_format, unreadable
from delayservice.store.ids import IDS_OPTIONS, IdDatabase
from delayservice.store.rocks import RocksOptions, snapshot_database
from delayservice.store.rocksdb import DATABASE, RocksDatabase, RocksStore
from delayservice.store.rocksdb import FORMAT as ROCKS_FORMAT
from delayservice.store.wheel import FORMAT as WHEEL_FORMAT
from delayservice.store.wheel import Wheel, WheelOptions, WheelStore
from delayservice.store.wheel.horizon import NAME, HorizonDamagedError, read_horizon
from delayservice.store.wheel.slots import FOLDER
from delayservice.store.wheel.wheel import IDS_FOLDER

KINDS: Final = ("wheel", "rocksdb")
FORMATS: Final = {"wheel": WHEEL_FORMAT, "rocksdb": ROCKS_FORMAT}
HOUR_MS: Final = 3_600_000
_LOCKS: Final = Path("/proc/locks")
_TRIES: Final = 3
_PAUSE_S: Final = 0.1
_ROWS: Final = 4_096
_VIEW_IDS: Final = replace(IDS_OPTIONS, open_files_max=-1, compacts=False)
# All table files are opened at once, so that no file is missing while rows are read.
_VIEW_ROCKS: Final = RocksOptions(open_files_max=-1, compacts=False)

Shards: TypeAlias = Wheel | RocksDatabase
ViewedStore: TypeAlias = WheelStore | RocksStore


class ReadBounds(NamedTuple):
    """Range of key times to read: ``from_ms <= key_ms < to_ms``, epoch milliseconds."""

    from_ms: int = 0
    to_ms: int = DUE_STOP_MS


EVERYTHING: Final = ReadBounds()


# --- folders -------------------------------------------------------------------------------------


def find_stores(root: Path) -> list[Path]:
    """Return the store folders in a node's state folder or one of its folders, or ``root``."""
    if (root / "VERSION").is_file():
        return [root]
    homes = [root / kind for kind in KINDS if (root / kind).is_dir()] or [root]
    found = [path for home in homes for path in home.glob("*")]
    folders = sorted(path for path in found if path.name.isdecimal() and _may_be_store(path))
    if not folders:
        raise StoreError(
            f"{root} holds no shard of a {' or '.join(KINDS)}; name a node's state folder "
            "(node.state_dir), a folder of stores in it, or one of those (a number)"
        )
    return folders


def _may_be_store(path: Path) -> bool:
    # Its name is not enough, because other programs also name folders by numbers.
    names = ("VERSION", NAME, DATABASE)
    return path.is_dir() and any((path / name).exists() for name in names)


def user_of(path: str) -> int | None:
    """Return the id of the process that has the store open; None: it is closed, or unknown."""
    lock = Path(path, "LOCK")
    with suppress(OSError, ValueError):
        inode = os.stat(lock).st_ino  # noqa: PTH116 - beside the table of the kernel
        for line in _LOCKS.read_text("ascii").splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[-3].endswith(f":{inode}"):
                return int(words[4])
    return None


def check_format(path: str) -> str:
    found = read_format(path)
    if found is None:
        raise StoreDamagedError(
            "VERSION is missing or damaged: a node rebuilds the store from Kafka"
        )
    known = FORMATS.get(found.kind)
    if known is None:
        raise StoreError(
            f"{path} holds a {found.kind!r} store, which this version of the service does not know"
        )
    if found.version > known:
        raise StoreError(
            f"{path} has format {found.version} of {found.kind}, newer than {known}, the newest "
            "that this version reads: look at it with the newer service"
        )
    if found.version < known:
        raise StoreError(
            f"{path} has format {found.version} of {found.kind}, and this version reads {known}: "
            "a node that opens it rebuilds it from Kafka"
        )
    return found.kind


# --- snapshots -----------------------------------------------------------------------------------


class _LinkedFiles(Files):
    """Files of a wheel's snapshot, whose slot files are links to those of a node."""

    read_flags = os.O_RDONLY

    def cut(self, path: str, size: int) -> None:
        """Do nothing: what follows is not read."""

    def write_at(self, path: str, position: int, data: bytes) -> None:
        if Path(path).is_symlink():
            raise AssertionError(f"{path} is a file of a node")
        super().write_at(path, position, data)


@contextmanager
def open_view(folder: Path, *, checked: bool = False) -> Iterator[Shards]:
    """Open a snapshot of a worker's folder; its shards can be attached and read. ``checked``: count
    their rows before.

    Raises:
        StoreDamagedError: a node that opens the folder would start it over from the log.
        StoreError: the folder holds no store of a known format, or it can't be read.
    """
    with ExitStack() as stack:
        stack.enter_context(_silence())
        for left in reversed(range(_TRIES)):
            try:
                shards = _view(folder, Path(stack.enter_context(TemporaryDirectory())))
                # A running node removes files meanwhile, so what is missing is looked for again.
                if not checked or shards.check() or not left:
                    break
                shards.abandon()
            except (StoreDamagedError, FileNotFoundError) as exc:
                if not left:
                    raise StoreDamagedError(f"{folder}: {exc}") from exc
            except OSError as exc:
                raise unreadable(str(folder), exc) from exc
            time.sleep(_PAUSE_S)
        stack.callback(shards.abandon)
        yield shards


@contextmanager
def _silence() -> Iterator[None]:
    # What a store logs is for its node; readers return or raise what is damaged.
    config = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**config)


def _view(folder: Path, view: Path) -> Shards:
    kind = check_format(str(folder))
    shutil.copyfile(folder / "VERSION", view / "VERSION")
    shards: Shards
    if kind == "rocksdb":
        database = folder / DATABASE
        if not database.is_dir():
            raise StoreDamagedError("the database is missing")
        snapshot_database(database, view / DATABASE)
        shards = RocksDatabase(view, _VIEW_ROCKS)
        shards.what = f"the store {folder}"
    else:
        shards = _wheel_view(folder, view)
    shards.is_view = True
    shards.open()
    if isinstance(shards, Wheel):
        _forget_pruned(shards)
    return shards


def _wheel_view(folder: Path, view: Path) -> Wheel:
    ids = folder / IDS_FOLDER
    try:
        shutil.copyfile(folder / NAME, view / NAME)
        slot_ms = read_horizon(str(view)).slot_ms
    except (FileNotFoundError, HorizonDamagedError) as exc:
        raise StoreDamagedError(
            f"the horizon is missing or damaged; a node rebuilds the store from Kafka: {exc}"
        ) from exc
    (view / FOLDER).mkdir()
    with suppress(FileNotFoundError):
        for file in (folder / FOLDER).iterdir():
            (view / FOLDER / file.name).symlink_to(file.resolve())
    if ids.is_dir():  # after the horizon, so that they are not behind it
        snapshot_database(ids, view / IDS_FOLDER)
    options = WheelOptions(slot_ms=slot_ms)
    make_ids = partial(IdDatabase, options=_VIEW_IDS)
    return Wheel(view, options, _LinkedFiles(options.handles_max), make_ids=make_ids)


def _forget_pruned(wheel: Wheel) -> None:
    # A file that is missing and was due: its node has pruned it since the last sync.
    now_ms = time.time_ns() // 1_000_000
    for slot in wheel.missing:
        if slot.stop_ms <= now_ms:
            for shard in [one for one in wheel.shards.values() if slot.held_by(one.number)]:
                wheel.slots.drop(shard, slot.start_ms)


def each_store(
    root: Path, *, checked: bool = False
) -> Iterator[tuple[ShardFolder, ViewedStore | StoreError]]:
    """Yield the shards of all stores that ``find_stores`` finds, with the open store of each, valid
    until the next one is taken; or the error of a shard or of a folder that can't be read: the
    latter has an empty shard and partition -1. ``checked``: count their rows before.
    """
    for folder in find_stores(root):
        try:
            with open_view(folder, checked=checked) as shards:
                for name in sorted(shards.shards):
                    yield ShardFolder(str(folder), *name), _opened(shards, name)
        except StoreError as exc:
            yield ShardFolder(str(folder), "", -1), exc


def _opened(shards: Shards, name: tuple[str, int]) -> ViewedStore | StoreError:
    store = shards.store(*name)
    try:
        store.open()
    except StoreError as exc:
        return exc
    return store


def read(store: ViewedStore, bounds: ReadBounds = EVERYTHING) -> Iterator[list[Frame] | Damage]:
    """Yield the records of a shard in key order, each with its mark, some at a time; and the ranges
    that can't be read. Raises ``StoreError`` if nothing more can be read.
    """
    scanner = store.scanner()
    after, upto = (bounds.from_ms, -1), (bounds.to_ms - 1, OFFSET_MAX)
    while after < upto:
        frames, after, damage = scanner.read_on(after, upto, _ROWS)
        if damage is not None:
            yield Damage.of(damage)
        elif frames:
            yield frames


# --- figures -------------------------------------------------------------------------------------


@dataclass(slots=True)
class HourFacts:
    """Figures of the records with key times in one hour; bytes are those of the payloads."""

    hour_ms: int
    records: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """Figures of a shard's store, and the ranges that can't be read."""

    kind: str
    # S, a source offset.
    stop_offset: int
    # Contracts and cluster secrets by which the records below S were read, as JSON; empty: there is
    # no label.
    label: bytes
    hours: list[HourFacts]
    # Lowest key time, epoch milliseconds; None: no record is stored or readable.
    first_ms: int | None
    # Highest key time, epoch milliseconds; None as for ``first_ms``.
    last_ms: int | None
    damages: list[Damage]

    @property
    def records(self) -> int:
        """Number of readable records, including settled ones not pruned yet."""
        return sum(hour.records for hour in self.hours)

    @property
    def bytes(self) -> int:
        return sum(hour.bytes for hour in self.hours)


def look(store: ViewedStore) -> StoreFacts:
    """Read all records of a shard. Raises ``StoreError`` if that is not possible."""
    hours: list[HourFacts] = []
    first_ms = last_ms = None
    damages: list[Damage] = []
    for found in read(store):
        if isinstance(found, Damage):
            damages.append(found)
            continue
        first_ms = found[0][0] if first_ms is None else first_ms
        last_ms = found[-1][0]
        for key_ms, _, _, payload in found:
            if not hours or key_ms >= hours[-1].hour_ms + HOUR_MS:
                hours.append(HourFacts(key_ms - key_ms % HOUR_MS))
            hours[-1].records += 1
            hours[-1].bytes += len(payload)
    kind = "rocksdb" if isinstance(store, RocksStore) else "wheel"
    return StoreFacts(kind, store.stop_offset, store.label, hours, first_ms, last_ms, damages)
