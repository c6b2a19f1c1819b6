"""Copies of the node's store on disks, and their defects.

``n1`` is the store as the node left it. The others hold its records with defects, each in another
minute of due time: ``n2`` in a wheel, ``n3`` in RocksDB, and ``n4`` in a wheel that lacks the newer
half of a shard's log.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from delay_devtools.drill.judge import Defect, Finding
from delay_devtools.drill.rows import Where
from delay_devtools.drill.stories import NAMES, PARTITIONS
from delayservice.base.errors import DelayServiceError
from delayservice.contract.codec import decode_payload
from delayservice.engine.cursor import NO_MARK, Frame
from delayservice.replicas.digest_rows import Damage
from delayservice.store.folder import ShardFolder
from delayservice.store.offline import each_store, open_view, read
from delayservice.store.rocksdb import RocksDatabase
from delayservice.store.wheel import Wheel, WheelOptions
from delayservice.store.wheel.slots import FOLDER, file_name

DISKS: Final = "disks"
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000
# Under what a store counts a record: not asked for here.
_GROUP: Final = ("", 0, False)
_STORES: Final = {"n2": "wheel", "n3": "rocksdb", "n4": "wheel"}
# Partitions in which bits are flipped, which hides other defects.
_DAMAGED: Final = frozenset(range(PARTITIONS // 2, PARTITIONS))


@dataclass(slots=True)
class ShardCopy:
    """One node's copy of one shard: records by offset; ``stop``, the next source offset to store;
    ``flips``, starts of the slots in which a bit is flipped, epoch ms.
    """

    node: str
    place: ShardFolder
    frames: dict[int, Frame]
    stop: int
    flips: list[int] = field(default_factory=list)

    def found(self, kind: str, start_ms: int | None, offset: int | None = None) -> Finding:
        return (DISKS, kind, self.node, NAMES.delay, self.place.partition, start_ms, offset)

    def put(self, kind: str, frame: Frame) -> Finding:
        self.frames[frame[1]] = frame
        return self.record(kind, frame)

    def record(self, kind: str, frame: Frame) -> Finding:
        return self.found(kind, frame[0] - frame[0] % _HOUR_MS, frame[1])


class Minute(NamedTuple):
    """Records of one minute of a copy: those that are pending, and those that are cancelled;
    ``hole`` is an offset without a committed record.
    """

    copy: ShardCopy
    pending: list[Frame]
    marked: list[Frame]
    hole: int


Spoil: TypeAlias = Callable[[Minute], list[Finding]]


def _lose_minute(one: Minute) -> list[Finding]:
    for frame in (*one.pending, *one.marked):
        del one.copy.frames[frame[1]]
    return [one.copy.record("missing", frame) for frame in one.pending]


def _lose_record(one: Minute) -> list[Finding]:
    return _lose_minute(one._replace(pending=one.pending[:1], marked=[]))


def _lose_mark(one: Minute) -> list[Finding]:
    return [
        one.copy.put("extra", (key_ms, offset, NO_MARK, payload))
        for key_ms, offset, _, payload in one.marked[:1]
    ]


def _add_record(one: Minute) -> list[Finding]:
    key_ms, _, mark, payload = one.pending[0]
    return [one.copy.put("extra", (key_ms, one.hole, mark, payload))]


def _alter_record(one: Minute) -> list[Finding]:
    key_ms, offset, mark, payload = one.pending[0]
    changed = payload.replace(b"value", b"VALUE", 1)
    return [one.copy.put("different", (key_ms, offset, mark, changed))]


def _flip_byte(one: Minute) -> list[Finding]:
    key_ms = one.pending[0][0]
    one.copy.flips.append(key_ms - key_ms % WheelOptions().slot_ms)
    return [one.copy.found("damaged", one.copy.flips[-1])]


def _go_stale(one: Minute) -> list[Finding]:
    one.copy.stop //= 2
    one.copy.frames.clear()
    return [one.copy.found("behind", None)]


_OF_RECORDS: Final[Mapping[str, Spoil]] = {
    "missing_minute": _lose_minute,
    "missing_record": _lose_record,
    "lost_mark": _lose_mark,
    "extra_record": _add_record,
    "altered_record": _alter_record,
}
COPY_KINDS: Final[Mapping[str, tuple[str, Spoil]]] = {
    **{f"wheel_{name}": ("n2", spoil) for name, spoil in _OF_RECORDS.items()},
    **{f"rocksdb_{name}": ("n3", spoil) for name, spoil in _OF_RECORDS.items()},
    "wheel_flipped_byte": ("n2", _flip_byte),
    "wheel_stale": ("n4", _go_stale),
}


class Copies:
    """Copies of the store in ``state``, spoilt in the shard with the folder name ``shard``.

    Args:
        pending_ms: key time from which the store's records are pending, epoch ms.
        holes: offsets without a committed record, from which records are added.
    """

    def __init__(self, state: Path, shard: str, pending_ms: int, holes: Sequence[Where]) -> None:
        self.folders = {"n1": str(state)}
        self._root = state.parent
        kept = list(_kept(state))
        self._copies = [ShardCopy(n, p, dict(f), stop) for n in _STORES for p, f, stop in kept]
        delayed = [copy for copy in self._copies if copy.place.shard == shard]
        self._minutes = [one for copy in delayed for one in _minutes(copy, pending_ms, holes)]

    def spoil(self, kinds: Iterable[str], rng: random.Random) -> list[Defect]:
        rng.shuffle(self._minutes)
        defects = [Defect(kind, tuple(self._spoil(*COPY_KINDS[kind]))) for kind in kinds]
        for node, kind in _STORES.items():
            path = self._root / node / kind / "0"
            path.parent.mkdir(parents=True)
            self.folders[node] = str(self._root / node)
            copies = [copy for copy in self._copies if copy.node == node]
            _keep(path, copies, kind)
            for copy in copies:
                for start_ms in copy.flips:
                    flip_byte(copy.place._replace(path=str(path)), start_ms)
        return defects

    def _spoil(self, node: str, spoil: Spoil) -> list[Finding]:
        for number, one in enumerate(self._minutes):
            is_damaged = one.copy.place.partition in _DAMAGED
            is_fit = spoil is _go_stale or is_damaged == (spoil is _flip_byte)
            if one.copy.node == node and one.copy.frames and is_fit and (found := spoil(one)):
                del self._minutes[number]
                return found
        raise DelayServiceError(f"{node} has no copy left to spoil: ask for fewer defects")


def _minutes(copy: ShardCopy, pending_ms: int, holes: Iterable[Where]) -> Iterator[Minute]:
    minutes: dict[int, list[Frame]] = defaultdict(list)
    for frame in copy.frames.values():
        if frame[0] >= pending_ms:
            minutes[frame[0] // _MINUTE_MS].append(frame)
    free = [where[2] for where in holes if where[:2] == (NAMES.delay, copy.place.partition)]
    for frames, hole in zip(minutes.values(), free, strict=False):
        pending = [frame for frame in frames if frame[2] == NO_MARK]
        if pending:
            yield Minute(copy, pending, [f for f in frames if f[2] != NO_MARK], hole)


# --- stores --------------------------------------------------------------------------------------


def _kept(state: Path) -> Iterator[tuple[ShardFolder, dict[int, Frame], int]]:
    for folder, store in each_store(state):
        if isinstance(store, DelayServiceError):
            raise store
        frames: dict[int, Frame] = {}
        for found in read(store):
            if isinstance(found, Damage):
                raise DelayServiceError(f"the node's own store is damaged: {found.why}")
            frames |= {frame[1]: frame for frame in found}
        yield folder, frames, store.stop_offset


def _keep(path: Path, copies: Iterable[ShardCopy], kind: str) -> None:
    shards = Wheel(path) if kind == "wheel" else RocksDatabase(path)
    for copy in copies:
        frames = [copy.frames[offset] for offset in sorted(copy.frames)]
        ids = [(frame, (decode_payload(frame[3])[6] or (None,))[0]) for frame in frames]
        named = [(name, *frame[:2], _GROUP) for frame, name in ids if name is not None]
        marks = [(name or b"", *frame[:3]) for frame, name in ids if frame[2] != NO_MARK]
        store = shards.store(copy.place.shard, copy.place.partition)
        store.open()
        store.append([(*f[:2], NO_MARK, f[3]) for f in frames], named, marks, copy.stop)
        store.close()


def flip_byte(folder: ShardFolder, start_ms: int) -> None:
    """Flip one bit of the first block that a shard has in a slot of its wheel."""
    with open_view(Path(folder.path)) as wheel:
        if not isinstance(wheel, Wheel):
            raise TypeError(folder)
        shard = wheel.shards[folder.shard, folder.partition]
        block = wheel.slots.blocks(shard, wheel.slots.by_start[start_ms])[0]
    path = Path(folder.path, FOLDER, file_name(start_ms))
    data = bytearray(path.read_bytes())
    data[block.body_position + block.length // 2] ^= 0x10
    path.write_bytes(bytes(data))
