"""Reads a wheel's files without its owner: beside a running node, a stopped one, or in a backup.

Files are not locked and only opened for reading. Only what the horizon vouches for is read
(``docs/internals/format-wheel.md``). A running node creates and removes files meanwhile: if a file
is not what the horizon says, the horizon is read again. A file that it no longer speaks of was
pruned; any other is damaged.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple, TypeVar

from delayservice.base.errors import StoreError
from delayservice.contract.times import DUE_STOP_MS
from delayservice.store.base import NO_MARK, Frame
from delayservice.store.files import Files
from delayservice.store.folder import read_format
from delayservice.store.shards import ShardFolder
from delayservice.store.wheel.block import MARK_ONLY, Block, BlockDamagedError
from delayservice.store.wheel.horizon import (
    HorizonDamagedError,
    LostRows,
    WheelHorizon,
    read_horizon,
)
from delayservice.store.wheel.runs import FOLDER, RunReader, file_name
from delayservice.store.wheel.slots import Slot
from delayservice.store.wheel.wheel import FORMAT

HOUR_MS: Final = 3_600_000
_TRIES: Final = 3
_Found = TypeVar("_Found")
_DAMAGE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EIO})
"""Errors that mean damage; any other (rights, limits) is raised."""


class Damage(NamedTuple):
    """A range that could not be read: keys in ``[start_ms, stop_ms)``, of records and marks in
    source offsets ``[first_offset, stop_offset)``; ``stop_offset`` None: up to the end of the log.
    """

    start_ms: int
    stop_ms: int
    first_offset: int
    stop_offset: int | None
    why: str
    is_missing: bool = False
    """The file is gone: if its time has passed, a node has pruned it and not said so yet."""


class ReadBounds(NamedTuple):
    """Keys that are asked for: ``from_ms <= key_ms < to_ms``."""

    from_ms: int = 0
    to_ms: int = DUE_STOP_MS

    def meets(self, first_ms: int, stop_ms: int) -> bool:
        """Return whether ``[first_ms, stop_ms)`` has keys that are asked for."""
        return first_ms < self.to_ms and stop_ms > self.from_ms


EVERYTHING: Final = ReadBounds()


class Rows(NamedTuple):
    """Records of one block; ``slot_ms`` is what its file is for."""

    slot_ms: tuple[int, int]
    frames: list[Frame]


class Part(NamedTuple):
    """The entry of a shard in the horizon of one slot.

    Attributes:
        start_ms: of the slot.
        stop_ms: its exclusive end.
        size: bytes of the file that are good.
        generation: of the shard's store.
        floor: blocks below this position do not count.
        records: in the file, lost ones among them.
        first_offset: lowest of a row.
        stop_offset: above the highest of a row or mark.
        lost: what the node has not read again yet.
    """

    start_ms: int
    stop_ms: int
    size: int
    generation: int
    floor: int
    records: int
    first_offset: int
    stop_offset: int
    lost: LostRows | None

    @property
    def name(self) -> str:
        """The file, below the wheel's folder."""
        return f"{FOLDER}/{file_name(self.start_ms)}"

    def blocks(self, reader: RunReader) -> list[Block]:
        """Return the blocks of the file that count.

        Raises:
            BlockDamagedError, OSError: the file is damaged or missing.
        """
        if self.size <= self.floor:
            return []
        return reader.blocks(self.start_ms, self.size, self.generation, self.floor)


class WheelState(NamedTuple):
    """The state of one shard that the horizon vouches for.

    Attributes:
        stop_offset: S: everything below is here, or noticed to be missing.
        label: by which contracts it was read, as JSON.
        parts: of the slots that hold anything of it, in order.
        generation: of its store; its ids are in a folder of that name.
        has_ids: whether the horizon speaks of ids.
    """

    stop_offset: int
    label: bytes
    parts: tuple[Part, ...]
    generation: int
    has_ids: bool

    def part_from(self, start_ms: int) -> Part | None:
        """Return the slot that begins at ``start_ms``; None: nothing of it is stored."""
        return next((part for part in self.parts if part.start_ms == start_ms), None)


def load_horizon(path: str) -> WheelHorizon | None:
    """Read the horizon of a wheel; None: it can't be trusted, and a node starts over from the log.

    Raises:
        StoreError: the folder is of another kind or a newer format, or may not be read.
    """
    files = Files(read_only=True)
    try:
        return read_horizon(path, files) if _is_ours(path) else None
    except HorizonDamagedError:
        return None
    except OSError as exc:
        if exc.errno not in _DAMAGE:
            raise unreadable(path, exc) from exc
        return None
    finally:
        files.close()


def _is_ours(path: str) -> bool:
    found = read_format(path)
    if found is not None and (found.kind != "wheel" or found.version > FORMAT):
        raise StoreError(
            f"{path} says that it holds {str(found)!r}, and this reads 'wheel {FORMAT}'; "
            "export a RocksDB store first, and read newer ones by a newer version"
        )
    return found is not None and found.version == FORMAT


def load_state(folder: ShardFolder) -> WheelState | None:
    """Return what a wheel's horizon vouches for of one shard; None: see ``load_horizon``.

    Raises:
        StoreError: as ``load_horizon``.
    """
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
    """Return the slots that have keys which are asked for, by the hour in which they begin."""
    hours: dict[int, list[Part]] = {}
    for part in parts:
        if bounds.meets(part.start_ms, part.stop_ms):
            hours.setdefault(part.start_ms // HOUR_MS * HOUR_MS, []).append(part)
    return {hour: tuple(found) for hour, found in sorted(hours.items())}


def read_parts(
    folder: ShardFolder, parts: Sequence[Part], bounds: ReadBounds
) -> Iterator[Rows | Damage]:
    """Yield what slots hold of a shard: each record once, with its mark, in no order.

    Memory: 70 bytes for each record of a slot, and a few blocks.

    Args:
        folder: the wheel and the shard.
        parts: its slots, as the horizon has them.
        bounds: keys that are asked for.

    Raises:
        StoreError: a file may not be read.
    """
    with open_reader(folder.path) as reader:
        for part in parts:
            yield from _read_part(folder, reader, part, bounds)


@contextmanager
def open_reader(
    path: str, bodies_bytes_max: int = 1 << 20, indexed_max: int = 1
) -> Iterator[RunReader]:
    """Open a wheel's slot files for reading.

    Args:
        path: the wheel's folder.
        bodies_bytes_max: memory for blocks that several shards read.
        indexed_max: slots whose headers are kept.
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
    """Read a slot, and anew by the newest horizon while it seems damaged; None: it was pruned."""
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
    """Return a shard's blocks in a slot's file, and what is wrong with it."""
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


def unreadable(what: str, exc: OSError) -> StoreError:
    """Return the error of a file that this user may not read."""
    return StoreError(
        f"can't read {what}: {exc.strerror}; run as the user of the service, or read a copy"
    )
