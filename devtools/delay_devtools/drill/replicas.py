"""Copies of each shard on three nodes, in the worlds ``disks`` and ``digests``, and their defects.

Each defect lies in another hour of a copy, so that defects can't hide each other. A stale copy
lacks the newer half of the offsets below H (in ``digests`` it only reports so), and has no other
defect.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

from delay_devtools.drill.history import Life
from delay_devtools.drill.service import ModelShard, Record
from delay_devtools.drill.stage import Defect
from delay_devtools.drill.wire import HOUR_MS, MINUTE_MS, Place, pack, record_hash, topic_hash
from delayservice.base.errors import DelayServiceError
from delayservice.store.folder import ShardFolder
from delayservice.store.offline import open_view
from delayservice.store.wheel import Wheel, WheelOptions, WheelStore
from delayservice.store.wheel.slots import FOLDER, file_name

NODES: Final = ("n1", "n2", "n3")
WORLDS: Final = ("disks", "digests")
STALE: Final = "stale_replica"
# Name of the only node with stale copies, so that each shard keeps two copies to compare.
LAST: Final = NODES[-1]
# Number of minutes from the minute of K on in which records are not compared.
_NEAR_MINUTES: Final = 3
_ROUND: Final = 4_096
NO_MARK: Final = -1
# Under what a store counts a record: not asked for here.
_GROUP: Final = ("", 0, False)


class CopyFound(NamedTuple):
    """Finding of the comparison of copies; ``start_ms``: start of the hour or of what is damaged,
    None: the whole copy.
    """

    kind: str
    node: str
    topic: str
    partition: int
    start_ms: int | None
    offset: int | None


class Frame(NamedTuple):
    """Record in a copy; ``mark``: offset of its canceller, or ``NO_MARK``."""

    key_ms: int
    offset: int
    mark: int
    record_id: bytes | None
    payload: bytes

    @property
    def hour_ms(self) -> int:
        return self.key_ms - self.key_ms % HOUR_MS

    @property
    def minute_ms(self) -> int:
        return self.key_ms - self.key_ms % MINUTE_MS

    @property
    def sum_hash(self) -> int:
        content = self.payload if self.record_id is None else self.record_id
        return record_hash(self.key_ms, self.offset, content)


@dataclass(slots=True)
class ShardCopy:
    """One node's copy of one shard. ``damaged``: starts of unreadable minutes (in digests) or hours
    (on disks); ``stop``: next source offset that the copy stores, unless it is stale.
    """

    world: str
    node: str
    place: Place
    frames: dict[int, Frame]
    h: int
    from_ms: int
    stop: int
    is_stale: bool = False
    damaged: list[int] = field(default_factory=list)

    def pending(self) -> Iterator[Frame]:
        for frame in self.frames.values():
            is_marked = NO_MARK < frame.mark < self.h
            if frame.offset < self.h and frame.key_ms >= self.from_ms and not is_marked:
                yield frame

    def found(self, kind: str, frame: Frame) -> CopyFound:
        return CopyFound(kind, self.node, *self.place, frame.hour_ms, frame.offset)


@dataclass(slots=True)
class Cell:
    """One hour of a copy: its pending records, and those that are marked by a canceller below H."""

    copy: ShardCopy
    hour_ms: int
    pending: list[Frame] = field(default_factory=list)
    marked: list[Frame] = field(default_factory=list)


def copies_of(life: Life) -> list[ShardCopy]:
    made = []
    for shard, beyond in zip(life.shards, life.beyond, strict=True):
        frames = {frame.offset: frame for frame in _frames(shard, beyond)}
        near_ms = (shard.key[0] // MINUTE_MS + _NEAR_MINUTES) * MINUTE_MS
        stop = life.ends.next[shard.place]
        for world, node in itertools.product(WORLDS, NODES):
            made.append(ShardCopy(world, node, shard.place, dict(frames), shard.h, near_ms, stop))
    return made


def _frames(shard: ModelShard, beyond: Sequence[Record]) -> Iterator[Frame]:
    for record in sorted((*shard.waiting.values(), *shard.marked, *beyond), key=lambda r: r.offset):
        if record.key_ms > shard.key[0]:
            mark = NO_MARK if record.mark is None else record.mark
            name = record.request.record_id
            yield Frame(record.key_ms, record.offset, mark, name, record.payload())


# --- defects -------------------------------------------------------------------------------------


class Spoiler:
    """Injects defects into copies; ``holes``: offsets without a committed record."""

    def __init__(
        self, copies: Sequence[ShardCopy], holes: Mapping[Place, Sequence[int]], rng: random.Random
    ) -> None:
        self._copies = copies
        self._holes = holes
        self._rng = rng
        self._cells: list[Cell] = []

    def spoil(self, kinds: Sequence[str]) -> list[Defect]:
        # Equal kinds alternate between disks and digests.
        worlds = {kind: itertools.cycle(WORLDS) for kind in kinds}
        chosen = [(kind, next(worlds[kind])) for kind in kinds]
        done = [self._stale(world) for kind, world in chosen if kind == STALE]
        self._cells = self._free_cells()
        self._rng.shuffle(self._cells)
        done += [self._in_cell(kind, world) for kind, world in chosen if kind != STALE]
        return done

    def _stale(self, world: str) -> Defect:
        fresh = [c for c in self._copies if (c.world, c.node) == (world, LAST) and not c.is_stale]
        if not fresh:
            raise _no_room(STALE)
        copy = self._rng.choice(fresh)
        copy.is_stale = True
        found = CopyFound("behind", copy.node, *copy.place, None, None)
        return Defect(STALE, (world,), (found,))

    def _free_cells(self) -> list[Cell]:
        cells: dict[tuple[int, int], Cell] = {}
        for number, copy in enumerate(self._copies):
            if copy.is_stale:
                continue
            # Of the first hour, a part is not compared.
            first_ms = copy.from_ms - copy.from_ms % HOUR_MS + HOUR_MS
            for frame in copy.frames.values():
                if frame.offset >= copy.h or frame.hour_ms < first_ms:
                    continue
                cell = cells.setdefault((number, frame.hour_ms), Cell(copy, frame.hour_ms))
                is_marked = NO_MARK < frame.mark < copy.h
                (cell.marked if is_marked else cell.pending).append(frame)
        return [cell for cell in cells.values() if cell.pending]

    def _in_cell(self, kind: str, world: str) -> Defect:
        for number, cell in enumerate(self._cells):
            if cell.copy.world == world:
                found = self.KINDS[kind](self, cell)
                if found:
                    del self._cells[number]
                    return Defect(kind, (world,), tuple(found))
        raise _no_room(kind)

    def _lose_minute(self, cell: Cell) -> list[CopyFound]:
        minute_ms = self._rng.choice(cell.pending).minute_ms
        gone = [frame for frame in cell.pending if frame.minute_ms == minute_ms]
        for frame in [f for f in cell.copy.frames.values() if f.minute_ms == minute_ms]:
            del cell.copy.frames[frame.offset]
        return [cell.copy.found("missing", frame) for frame in gone]

    def _lose_record(self, cell: Cell) -> list[CopyFound]:
        frame = self._rng.choice(cell.pending)
        del cell.copy.frames[frame.offset]
        return [cell.copy.found("missing", frame)]

    def _lose_mark(self, cell: Cell) -> list[CopyFound]:
        if not cell.marked:
            return []
        return self._added(cell, self._rng.choice(cell.marked)._replace(mark=NO_MARK))

    def _add_record(self, cell: Cell) -> list[CopyFound]:
        copy = cell.copy
        free = [o for o in self._holes[copy.place] if o < copy.h and o not in copy.frames]
        like = self._rng.choice(cell.pending)
        frame = like._replace(offset=self._rng.choice(free), record_id=None)
        return self._added(cell, frame._replace(payload=_plain(b"never written")))

    @staticmethod
    def _added(cell: Cell, frame: Frame) -> list[CopyFound]:
        cell.copy.frames[frame.offset] = frame
        return [cell.copy.found("extra", frame)]

    def _alter_record(self, cell: Cell) -> list[CopyFound]:
        # Digests hash only the id of a record that has one, so only records without ids are
        # altered.
        plain = [frame for frame in cell.pending if frame.record_id is None]
        if not plain:
            return []
        frame = self._rng.choice(plain)
        changed = frame.payload.replace(b"trace", b"tracE", 1)
        if changed == frame.payload:
            raise AssertionError(f"the payload at offset {frame.offset} has no header to change")
        cell.copy.frames[frame.offset] = frame._replace(payload=changed)
        return [cell.copy.found("different", frame)]

    def _damage(self, cell: Cell) -> list[CopyFound]:
        copy = cell.copy
        start_ms = cell.hour_ms if copy.world == "disks" else cell.pending[0].minute_ms
        copy.damaged.append(start_ms)
        return [CopyFound("damaged", copy.node, *copy.place, start_ms, None)]

    KINDS: ClassVar = {
        "missing_minute": _lose_minute,
        "missing_record": _lose_record,
        "lost_mark": _lose_mark,
        "extra_record": _add_record,
        "altered_record": _alter_record,
        "flipped_byte": _damage,
    }


def _plain(value: bytes) -> bytes:
    return pack(("nowhere", -1, None, value, [], 1, None))


def _no_room(kind: str) -> DelayServiceError:
    return DelayServiceError(
        f"there is no copy left for another {kind}: ask for fewer defects, or for more records and "
        "partitions"
    )


# --- on disks ------------------------------------------------------------------------------------


def keep(life: Life, copies: Iterable[ShardCopy], state: Path) -> dict[str, str]:
    for copy in copies:
        if copy.world == "disks":
            folder = str(state / copy.node / "wheel" / "0")
            _keep(copy, ShardFolder(folder, topic_hash(life.topic_id), copy.place[1]))
    return {node: str(state / node) for node in NODES}


def _keep(copy: ShardCopy, folder: ShardFolder) -> None:
    stop = copy.h // 2 if copy.is_stale else copy.stop
    frames = sorted((f for f in copy.frames.values() if f.offset < stop), key=lambda f: f.offset)
    wheel = Wheel(Path(folder.path), WheelOptions(slot_ms=HOUR_MS))
    store = WheelStore(wheel, folder.shard, folder.partition)
    store.open()
    for start in range(0, len(frames), _ROUND):
        some = frames[start : start + _ROUND]
        named = [(f.record_id, f.key_ms, f.offset, _GROUP) for f in some if f.record_id is not None]
        rows = [(f.key_ms, f.offset, NO_MARK, f.payload) for f in some]
        store.append(rows, named, [], some[-1].offset + 1)
    marks = [
        (frame.record_id, frame.key_ms, frame.offset, frame.mark)
        for frame in frames
        if frame.record_id is not None and NO_MARK < frame.mark < stop
    ]
    store.append([], [], marks, stop)
    store.close()
    for start_ms in copy.damaged:
        flip_byte(folder, start_ms)


def flip_byte(folder: ShardFolder, start_ms: int) -> None:
    with open_view(Path(folder.path)) as wheel:
        if not isinstance(wheel, Wheel):
            raise TypeError(folder)
        shard = wheel.shards[folder.shard, folder.partition]
        block = wheel.slots.blocks(shard, wheel.slots.by_start[start_ms])[0]
    path = Path(folder.path, FOLDER, file_name(start_ms))
    data = bytearray(path.read_bytes())
    data[block.body_position + start_ms // HOUR_MS * 7_919 % block.length] ^= 0x10
    path.write_bytes(bytes(data))
