"""Reader of a wheel's files for another process: files of a running node, a stopped one, or a
backup.

Files are not locked, and are opened for reading only. Only content that the horizon file lists is
read (``docs/internals/format-wheel.md``). A running node creates and removes files meanwhile: if a
file differs from the horizon file, the latter is read again. A file that it no longer lists was
pruned; any other file that differs is damaged. The generation is the number of a shard's store, by
which its rows (records and marks) are found in files.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from delayservice.base.errors import StoreError
from delayservice.contract.times import DUE_STOP_MS
from delayservice.store.base import NO_MARK, Frame
from delayservice.store.files import Files
from delayservice.store.folder import ShardFolder, read_format, unreadable
from delayservice.store.wheel.block import MARK_ONLY, Block, BlockDamagedError
from delayservice.store.wheel.horizon import (
    HorizonDamagedError,
    LostRows,
    WheelHorizon,
    read_horizon,
)
from delayservice.store.wheel.slots import FOLDER, RunReader, Slot, file_name
from delayservice.store.wheel.wheel import FORMAT

HOUR_MS: Final = 3_600_000
_TRIES: Final = 3
_Found = TypeVar("_Found")
# Error numbers of reads that mean damage; errors of other numbers (rights, limits) are raised.
_DAMAGE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EIO})


class Damage(NamedTuple):
    """Range of keys that could not be read."""

    # First key time, epoch milliseconds.
    start_ms: int
    # Exclusive end of the key times, epoch milliseconds.
    stop_ms: int
    # Lowest source offset of the records in the range.
    first_offset: int
    # One above the highest source offset of its records and marks; None: the end of the log.
    stop_offset: int | None
    why: str
    # If its slot was due, a missing file is no damage: a node has pruned it since its last sync.
    is_missing: bool = False


class ReadBounds(NamedTuple):
    """Range of key times to read: ``from_ms <= key_ms < to_ms``, epoch milliseconds."""

    from_ms: int = 0
    to_ms: int = DUE_STOP_MS

    def meets(self, first_ms: int, stop_ms: int) -> bool:
        return first_ms < self.to_ms and stop_ms > self.from_ms


EVERYTHING: Final = ReadBounds()


class Rows(NamedTuple):
    """Records of one block, with their marks; ``slot_ms`` is the slot's start and exclusive end."""

    slot_ms: tuple[int, int]
    frames: list[Frame]


class Part(NamedTuple):
    """Content of a shard in one slot, as the horizon file lists it."""

    start_ms: int
    stop_ms: int
    # Number of valid bytes at the start of the file.
    size: int
    generation: int
    # Byte position below which blocks are ignored.
    floor: int
    # Number of the shard's records in the file, including ``lost`` ones.
    records: int
    # Lowest source offset of its records, and of those that it marks.
    first_offset: int
    # One above the highest source offset of a record or mark.
    stop_offset: int
    # Damaged rows that the node has not read again from the log yet; None: the node knows of no
    # damage.
    lost: LostRows | None

    @property
    def name(self) -> str:
        return f"{FOLDER}/{file_name(self.start_ms)}"

    def blocks(self, reader: RunReader) -> list[Block]:
        if self.size <= self.floor:
            return []
        return reader.blocks(self.start_ms, self.size, self.generation, self.floor)


class WheelState(NamedTuple):
    """State of one shard. Records below ``stop_offset``, S, are in files, or listed as lost."""

    stop_offset: int
    label: bytes
    parts: tuple[Part, ...]
    generation: int
    has_ids: bool

    def part_from(self, start_ms: int) -> Part | None:
        return next((part for part in self.parts if part.start_ms == start_ms), None)


def load_horizon(path: str) -> WheelHorizon | None:
    """Return the content of a wheel's horizon file; None: it is missing or damaged, or the wheel
    has an older format or no readable VERSION. In these cases, a node that opens the wheel starts
    over from the log.

    Raises:
        StoreError: the folder has a store of another kind or a newer format, or this user has no
            right to read it.
    """
    try:
        return read_horizon(path) if _is_ours(path) else None
    except HorizonDamagedError:
        return None
    except OSError as exc:
        if exc.errno not in _DAMAGE:
            raise unreadable(path, exc) from exc
        return None


def _is_ours(path: str) -> bool:
    found = read_format(path)
    if found is not None and (found.kind != "wheel" or found.version > FORMAT):
        raise StoreError(
            f"{path} says that it holds {str(found)!r}, and this reads 'wheel {FORMAT}'; a newer "
            "version reads newer stores"
        )
    return found is not None and found.version == FORMAT


def wheel_shards(folder: Path) -> list[ShardFolder]:
    # Empty if it is missing or damaged.
    try:
        rows = read_horizon(str(folder)).shards
    except (OSError, HorizonDamagedError):
        return []
    return sorted(ShardFolder(str(folder), row.topic, row.partition) for row in rows)


def load_state(folder: ShardFolder) -> WheelState | None:
    # None: as for ``load_horizon``, or the shard is not listed.
    horizon = load_horizon(folder.path)
    if horizon is None:
        return None
    for row in horizon.shards:
        if (row.topic, row.partition) == (folder.shard, folder.partition):
            parts = tuple(_parts_of(horizon, row.number, row.generation))
            return WheelState(row.stop_offset, row.label, parts, row.generation, row.has_ids)
    return None


def _parts_of(horizon: WheelHorizon, number: int, generation: int) -> Iterator[Part]:
    for row in sorted(horizon.slots, key=lambda row: row.start_ms):
        slot = Slot.of_row(row, horizon.slot_ms)
        if slot.held_by(number):
            yield Part(
                slot.start_ms,
                slot.stop_ms,
                slot.size,
                generation,
                slot.floors.get(number, 0),
                slot.counts[number],
                slot.firsts[number],
                slot.stops[number],
                slot.lost.get(number),
            )


def hours_of(parts: Iterable[Part], bounds: ReadBounds) -> dict[int, tuple[Part, ...]]:
    """Return the parts that overlap ``bounds``, by the start of the hour in which their slots
    start.
    """
    hours: dict[int, list[Part]] = {}
    for part in parts:
        if bounds.meets(part.start_ms, part.stop_ms):
            hours.setdefault(part.start_ms // HOUR_MS * HOUR_MS, []).append(part)
    return {hour: tuple(found) for hour, found in sorted(hours.items())}


def read_parts(
    folder: ShardFolder, parts: Sequence[Part], bounds: ReadBounds
) -> Iterator[Rows | Damage]:
    """Yield a shard's records with key times in ``bounds``, each once and with its mark, in no
    order, and the ranges that are damaged. A slot that was pruned meanwhile yields nothing.

    Memory is needed for a few blocks, and 70 bytes for each record of a slot.
    """
    with open_reader(folder.path) as reader:
        for part in parts:
            yield from _read_part(folder, reader, part, bounds)


@contextmanager
def open_reader(
    path: str, bodies_bytes_max: int = 1 << 20, indexed_max: int = 1
) -> Iterator[RunReader]:
    """Open a reader of a wheel's slot files. ``bodies_bytes_max``: memory for cached blocks that
    several shards share; ``indexed_max``: largest number of slots whose block headers are cached.
    """
    reader = RunReader(path, Files(8, read_only=True), bodies_bytes_max, indexed_max)
    try:
        yield reader
    finally:
        reader.close()


def read_newest(
    folder: ShardFolder,
    reader: RunReader,
    part: Part,
    read: Callable[[Part], _Found],
    is_damaged: Callable[[_Found], bool],
) -> tuple[Part, _Found] | None:
    """Read a shard's content in one slot by ``read``. If ``is_damaged``, reload the horizon file
    and read again, up to three times. Return the slot's content in the horizon file used last, and
    the last result of ``read``; None: the slot was pruned.
    """
    found = read(part)
    for _ in range(_TRIES):
        state = load_state(folder) if is_damaged(found) else None
        if state is None:
            break
        known, newer = part, state.part_from(part.start_ms)
        if newer is None:
            return None
        part = newer
        reader.reopen(part.start_ms)
        found = read(part)
        if part == known:
            break
    return part, found


def _read_part(
    folder: ShardFolder, reader: RunReader, part: Part, bounds: ReadBounds
) -> Iterator[Rows | Damage]:
    newest = read_newest(
        folder, reader, part, partial(_blocks, reader), lambda found: found[1] is not None
    )
    if newest is None:
        return
    part, (blocks, damage) = newest
    marks: dict[int, int] = {}
    seen: set[int] = set()
    for block in [block for block in blocks if block.has_marks]:
        found, _ = _decode(reader, part, block)
        marks |= {offset: mark for _, offset, mark, _ in found if mark != NO_MARK}
    for block in blocks:
        if bounds.meets(block.first_ms, block.last_ms + 1):
            found, worse = _decode(reader, part, block)
            damage = damage or worse
            frames = _records(found, marks, seen, bounds)
            if frames:
                yield Rows((part.start_ms, part.stop_ms), frames)
    if damage is not None:
        yield damage


def _blocks(reader: RunReader, part: Part) -> tuple[list[Block], Damage | None]:
    damage = None
    if part.lost is not None:
        damage = _damaged(part, "the node has not read again yet what was damaged")
    try:
        return part.blocks(reader), damage
    except (BlockDamagedError, OSError) as exc:
        good = reader.good_blocks(part.start_ms, part.generation, part.floor)
        return good, _why_damaged(part, exc)


def _decode(reader: RunReader, part: Part, block: Block) -> tuple[list[Frame], Damage | None]:
    try:
        return reader.rows(part.start_ms, block, part.generation), None
    except (BlockDamagedError, OSError) as exc:
        return [], _why_damaged(part, exc)


def _why_damaged(part: Part, exc: BlockDamagedError | OSError) -> Damage:
    return _medium(part, exc) if isinstance(exc, OSError) else _damaged(part, str(exc))


def _damaged(part: Part, why: str) -> Damage:
    lost = part.lost
    if lost is None:
        span = part.start_ms, part.stop_ms, part.first_offset, part.stop_offset
    else:
        span = lost.from_ms, part.stop_ms, lost.first_offset, lost.stop_offset
    return Damage(*span, f"{part.name}: {why}")


def _medium(part: Part, exc: OSError) -> Damage:
    if exc.errno not in _DAMAGE:
        raise unreadable(part.name, exc) from exc
    damage = _damaged(part, exc.strerror or "it can't be read")
    return damage._replace(is_missing=exc.errno == errno.ENOENT)


def _records(
    rows: Iterable[Frame], marks: dict[int, int], seen: set[int], bounds: ReadBounds
) -> list[Frame]:
    found = []
    for key_ms, offset, _, payload in rows:
        is_wanted = bounds.from_ms <= key_ms < bounds.to_ms and offset not in seen
        if is_wanted and payload is not MARK_ONLY:
            seen.add(offset)
            found.append((key_ms, offset, marks.get(offset, NO_MARK), payload))
    return found
