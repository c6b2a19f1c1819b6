"""Inspection of the stores on a disk, wheel or RocksDB, by another process: the search for shards'
folders, and the figures, the records and a check of all content of a shard's store.

Nothing is locked or written, so a node may have the store open. A wheel is read in the state of its
last sync, RocksDB in its present state.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from heapq import nsmallest
from itertools import groupby
from pathlib import Path
from typing import Final

from delayservice.base.errors import StoreError
from delayservice.store import findings
from delayservice.store.base import Frame
from delayservice.store.findings import CheckVerdict, Finding
from delayservice.store.folder import ShardFolder, read_format
from delayservice.store.rocks_view import RocksView, verify_rocks, viewed_database, viewed_store
from delayservice.store.rocksdb import DATABASE
from delayservice.store.rocksdb import FORMAT as ROCKS_FORMAT
from delayservice.store.wheel import FORMAT as WHEEL_FORMAT
from delayservice.store.wheel.horizon import NAME
from delayservice.store.wheel.reading import (
    EVERYTHING,
    HOUR_MS,
    Damage,
    Part,
    ReadBounds,
    hours_of,
    load_state,
    open_reader,
    read_parts,
    wheel_shards,
)
from delayservice.store.wheel.slots import RunReader
from delayservice.store.wheel.verifying import verify_wheel

KINDS: Final = ("wheel", "rocksdb")
_LOCKS: Final = Path("/proc/locks")


def find_shards(root: Path) -> list[ShardFolder]:
    """Return the shards of all store folders in ``root``, as ``find_stores`` finds them. A folder
    whose shards can't be listed gives one entry, with an empty topic and partition -1.
    """
    return [shard for folder in find_stores(root) for shard in _shards_of(folder)]


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


def _shards_of(folder: Path) -> list[ShardFolder]:
    return kept_shards(folder) or [ShardFolder(str(folder), "", -1)]


def kept_shards(folder: Path) -> list[ShardFolder]:
    """Return the shards in a worker's folder, sorted; none if it can't be read."""
    found = read_format(str(folder))
    if found is not None and found.kind == "rocksdb":
        with suppress(StoreError), viewed_database(folder) as rocks:
            return [ShardFolder(str(folder), *place) for place in rocks.places]
        return []
    return wheel_shards(folder)


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


FORMATS: Final = {"wheel": WHEEL_FORMAT, "rocksdb": ROCKS_FORMAT}
_BODIES_BYTES_MAX: Final = 64 << 20


def _nothing(_done: int, _total: int) -> None: ...


@dataclass(frozen=True, slots=True)
class HourFacts:
    """Figures of the records with key times in one hour; in a wheel, of slots that begin in it."""

    hour_ms: int
    # Number of slots with records of the shard in a wheel; 0 for RocksDB.
    slots: int
    records: int
    # Bytes of the slots' files, with the records of other shards (wheel), or of the shard's
    # payloads (RocksDB).
    bytes: int
    # Number of slots with damaged records that the node has found and not read again from the log
    # yet; 0 for RocksDB.
    damaged: int


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """Figures of a shard's store."""

    kind: str
    version: int
    # S, a source offset; None: the store is damaged, and a node that opens it would start it over
    # from the log.
    stop_offset: int | None
    # Contracts and cluster secrets by which the records below S were read, as JSON; empty: there is
    # no label.
    label: bytes
    hours: tuple[HourFacts, ...]
    # Lowest key time, epoch milliseconds; None: no record is stored or readable.
    first_ms: int | None
    # Highest key time, epoch milliseconds; None as for ``first_ms``.
    last_ms: int | None

    @property
    def records(self) -> int:
        """Number of stored records, including settled ones not pruned yet."""
        return sum(hour.records for hour in self.hours)

    @property
    def bytes(self) -> int:
        return sum(hour.bytes for hour in self.hours)


def check_format(path: str) -> str | None:
    # Raises if the kind is unknown, or the format another.
    found = read_format(path)
    if found is None:
        return None
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


# --- facts ---------------------------------------------------------------------------------------


def look(shard: ShardFolder) -> StoreFacts:
    """Return the figures of a shard's store. Raises ``StoreError`` if it can't be read."""
    kind = check_format(shard.path)
    if kind is None:
        raise StoreError(f"{shard.path} has no VERSION: a node rebuilds it from Kafka")
    if kind == "wheel":
        return _look_at_wheel(shard)
    with viewed_store(shard) as store:
        return _look_at_rocks(store)


def _look_at_wheel(shard: ShardFolder) -> StoreFacts:
    state = load_state(shard)
    if state is None:
        return StoreFacts("wheel", WHEEL_FORMAT, None, b"", (), None, None)
    parts = hours_of(state.parts, EVERYTHING)
    ends = [_bounds(shard, part) for part in {*state.parts[:1], *state.parts[-1:]}]
    return StoreFacts(
        "wheel",
        WHEEL_FORMAT,
        state.stop_offset,
        state.label,
        tuple(_hour_of_wheel(hour, found) for hour, found in parts.items()),
        min([first for first, _ in ends if first is not None], default=None),
        max([last for _, last in ends if last is not None], default=None),
    )


def _hour_of_wheel(hour_ms: int, parts: tuple[Part, ...]) -> HourFacts:
    return HourFacts(
        hour_ms,
        len(parts),
        sum(part.records for part in parts),
        sum(part.size for part in parts),
        sum(part.lost is not None for part in parts),
    )


def _bounds(shard: ShardFolder, part: Part) -> tuple[int | None, int | None]:
    keys = [
        frame[0]
        for rows in read_parts(shard, [part], EVERYTHING)
        if not isinstance(rows, Damage)
        for frame in (min(rows.frames), max(rows.frames))
    ]
    return min(keys, default=None), max(keys, default=None)


def _look_at_rocks(store: RocksView) -> StoreFacts:
    hours: list[HourFacts] = []
    first_ms = last_ms = None
    for hour, frames in groupby(
        store.scanner().frames((0, -1), EVERYTHING.to_ms), lambda f: f[0] // HOUR_MS
    ):
        records = size = 0
        for last_ms, _, _, payload in frames:
            first_ms = last_ms if first_ms is None else first_ms
            records += 1
            size += len(payload)
        hours.append(HourFacts(hour * HOUR_MS, 0, records, size, 0))
    return StoreFacts(
        "rocksdb",
        ROCKS_FORMAT,
        store.stop_offset,
        store.label,
        tuple(hours),
        first_ms,
        last_ms,
    )


# --- records -------------------------------------------------------------------------------------


def read_records(
    shard: ShardFolder, bounds: ReadBounds, wanted: Callable[[Frame], bool], limit: int
) -> Iterator[Frame | Damage]:
    """Yield at most ``limit`` wanted records in key order, and, for a wheel, the ranges that can't
    be read, each before the other records of its slot; RocksDB raises ``StoreError`` for damage.
    """
    if check_format(shard.path) == "wheel":
        yield from _wheel_records(shard, bounds, wanted, limit)
        return
    with viewed_store(shard) as store:
        for frame in store.scanner().frames((bounds.from_ms, -1), bounds.to_ms - 1):
            if limit <= 0:
                return
            if wanted(frame):
                limit -= 1
                yield frame


def _wheel_records(
    shard: ShardFolder, bounds: ReadBounds, wanted: Callable[[Frame], bool], limit: int
) -> Iterator[Frame | Damage]:
    state = load_state(shard)
    if state is None:
        raise StoreError(
            f"{shard.path} is damaged: a node rebuilds it from Kafka; "
            "`delayservice verify` says why"
        )
    for part in state.parts:
        if limit > 0 and bounds.meets(part.start_ms, part.stop_ms):
            damages: list[Damage] = []
            found = nsmallest(limit, _wanted(shard, part, bounds, wanted, damages))
            yield from damages
            yield from found
            limit -= len(found)


def _wanted(
    shard: ShardFolder,
    part: Part,
    bounds: ReadBounds,
    wanted: Callable[[Frame], bool],
    damages: list[Damage],
) -> Iterator[Frame]:
    # A missing file of a slot that was due is not damage: a node has pruned it since its last sync.
    now_ms = time.time_ns() // 1_000_000
    for rows in read_parts(shard, [part], bounds):
        if isinstance(rows, Damage):
            if not (rows.is_missing and rows.stop_ms <= now_ms):
                damages.append(rows)
        else:
            yield from filter(wanted, rows.frames)


# --- checks --------------------------------------------------------------------------------------


def wheel_reader(path: str) -> AbstractContextManager[RunReader]:
    """Return a reader for ``verify``, with 64 MiB, and 500 bytes for each block and 20 for each
    shard in it.
    """
    return open_reader(path, _BODIES_BYTES_MAX, sys.maxsize)


def verify(
    shard: ShardFolder,
    now_ms: Callable[[], int],
    on_progress: Callable[[int, int], None] = _nothing,
    reader: RunReader | None = None,
) -> CheckVerdict:
    """Check all content of a shard's store, and return the findings.

    Args:
        shard: the shard's folder.
        now_ms: returns the present time, epoch milliseconds; records due by then may have been
            settled.
        on_progress: takes the number of slots (wheel) or records (RocksDB) checked so far, and the
            number of all.
        reader: reader of the shard's wheel, which the checks of its shards share; None: a new one.
    """
    kind = check_format(shard.path)
    if kind == "wheel":
        with ExitStack() as stack:
            reader = reader or stack.enter_context(wheel_reader(shard.path))
            return verify_wheel(shard, now_ms, on_progress, reader)
    if kind == "rocksdb":
        return verify_rocks(shard, now_ms, on_progress)
    what = "VERSION is missing or unreadable"
    held = [name for name in ("horizon", "db") if Path(shard.path, name).exists()]
    found = (Finding(findings.START_OVER, what, "VERSION"),) if held else ()
    return CheckVerdict(0, 0, 0, found)
