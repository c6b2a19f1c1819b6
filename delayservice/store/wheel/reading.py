"""A wheel's files read by somebody else than its owner: a running node, a stopped one, a backup.

Nothing is locked, written or opened for writing. What the horizon and its index say is good is
read, the rest is of no account (``docs/format-wheel.md``). Beside a running node files come and go:
all files of an hour are opened first, and what was opened stays as it is, for slot files are only
appended to or removed. If one is not what the index says, the index is read again: a file that it
no longer speaks of was pruned or moved; any other is damaged.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from delayservice.core.times import DUE_STOP_MS
from delayservice.errors import StoreError
from delayservice.store.base import NO_MARK, Frame
from delayservice.store.files import Files
from delayservice.store.shards import read_format
from delayservice.store.wheel.block import (
    HEADER_BYTES,
    MARK_ONLY,
    SLOT_MS,
    Block,
    BlockDamagedError,
    decode_block,
)
from delayservice.store.wheel.manifest import DAMAGED, Entry, Manifest
from delayservice.store.wheel.near import read_blocks
from delayservice.store.wheel.slots import HOUR, Slot, hour_name
from delayservice.store.wheel.store import FORMAT

if TYPE_CHECKING:
    from collections.abc import Callable

_TRIES: Final = 3
_SLOTS_OPEN_MAX: Final = 1 << 20
"""Files of an hour stay open while it is read: some hundred, and 3,661 at most."""
_DAMAGE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EIO})
"""Errors of the medium; any other is about us (rights, limits) and is raised."""


class Damage(NamedTuple):
    """What could not be read: keys in ``[start_ms, stop_ms)``, whose records and marks are in the
    source offsets ``[first_offset, stop_offset)``; ``stop_offset`` None: up to the end of the log.
    """

    start_ms: int
    stop_ms: int
    first_offset: int
    stop_offset: int | None
    why: str
    is_missing: bool = False
    """The file is gone: if its time has passed, a node has pruned it and not said so yet."""


class Bounds(NamedTuple):
    """Keys that are asked for: ``from_ms <= key_ms < to_ms``."""

    from_ms: int = 0
    to_ms: int = DUE_STOP_MS

    def meets(self, first_ms: int, stop_ms: int) -> bool:
        """Whether ``[first_ms, stop_ms)`` has keys that are asked for."""
        return first_ms < self.to_ms and stop_ms > self.from_ms


EVERYTHING: Final = Bounds()


class Rows(NamedTuple):
    """Records of one block; ``slot_ms`` is what its file is for."""

    slot_ms: tuple[int, int]
    frames: list[Frame]


@dataclass(frozen=True, slots=True)
class WheelState:
    """What a shard's horizon vouches for.

    Attributes:
        stop_offset: S: everything below is here, or noticed to be missing.
        label: by which contracts it was read, as JSON.
        entries: the slots that hold anything.
        has_ids: whether it speaks of ids.
    """

    stop_offset: int
    label: bytes
    entries: tuple[Entry, ...]
    has_ids: bool = False


def load_state(path: str) -> WheelState | None:
    """What a shard's horizon vouches for; None: nothing here can be trusted, so that a node would
    start over from the log.

    Raises:
        StoreError: the folder is of another kind or a newer format, or may not be read.
    """
    for _ in range(_TRIES):  # beside a running node an index may be replaced between two reads
        files = Files(read_only=True)
        try:
            if not _is_ours(path):
                return None
            state = Manifest(path, files).load()
        finally:
            files.close()
        if state is not None:
            return WheelState(state.stop_offset, state.label, tuple(state.live), state.has_ids)
    return None


def _is_ours(path: str) -> bool:
    found = read_format(path)
    if found is not None and (found.kind != "wheel" or found.version > FORMAT):
        raise StoreError(
            f"{path} says that it holds {str(found)!r}, and this reads 'wheel {FORMAT}'; "
            "export a RocksDB store first, and read newer ones by a newer version"
        )
    return found is not None and found.version == FORMAT


def hours_of(entries: Iterable[Entry], bounds: Bounds) -> dict[int, tuple[Entry, ...]]:
    """Slots that have keys which are asked for, by the first second of their hour."""
    hours: dict[int, list[Entry]] = {}
    for entry in entries:
        if bounds.meets(*_slot_ms(entry)):
            hours.setdefault(entry.second - entry.second % HOUR, []).append(entry)
    return {hour: tuple(found) for hour, found in sorted(hours.items())}


def _slot_ms(entry: Entry) -> tuple[int, int]:
    return entry.second * SLOT_MS, (entry.second + entry.width) * SLOT_MS


def read_hour(
    path: str, hour: int, entries: Sequence[Entry], bounds: Bounds
) -> Iterator[Rows | Damage]:
    """What slots of one hour hold: each record once, with its mark, in no order.

    Memory: 70 bytes for each record of the hour, and one block.

    Args:
        path: the shard's folder.
        hour: first second of the hour.
        entries: its slots, as the index has them.
        bounds: keys that are asked for.

    Raises:
        StoreError: a file may not be read.
    """
    reader = _HourReader(path, entries, bounds)
    try:
        for _ in range(_TRIES):
            if not reader.damages:
                break
            state = load_state(path)
            newer = hours_of(state.entries, bounds).get(hour, ()) if state is not None else entries
            if newer == tuple(entries):
                break
            entries = newer
            reader.close()
            reader = _HourReader(path, entries, bounds)
        yield from reader.read()
    finally:
        reader.close()


@dataclass(slots=True)
class _SlotFile:
    """A slot's file, opened, and those of its blocks that have keys which are asked for."""

    entry: Entry
    slot: Slot
    read: Callable[[int, int], bytes]
    blocks: list[Block] = field(default_factory=list)
    damage: Damage | None = None

    def note(self, why: object, *, is_missing: bool = False) -> None:
        """Something of the slot can't be read; the first reason is told."""
        if self.damage is None:
            entry = self.entry
            why = f"slot {self.slot.name}: {why}"
            first, stop = max(0, entry.first), entry.last + 1
            self.damage = Damage(*_slot_ms(entry), first, stop, why, is_missing)

    def open(self, bounds: Bounds) -> None:
        """Read the headers: from here on the file stays as it is."""
        if self.entry.state == DAMAGED:
            self.note("the node found it damaged and has not read it again yet")
            return
        try:
            for block in read_blocks(self.read, self.slot):
                if bounds.meets(block.first[0], block.last[0] + 1):
                    self.blocks.append(block)
        except BlockDamagedError as exc:
            self.note(exc)
        except OSError as exc:
            self._note_medium(exc)

    def _note_medium(self, exc: OSError) -> None:
        if exc.errno not in _DAMAGE:
            raise _unreadable(f"slot {self.slot.name}", exc) from exc
        self.note(exc.strerror, is_missing=exc.errno == errno.ENOENT)

    def decode(self, block: Block) -> list[Frame]:
        """Rows of a block; none, and a note, if it is damaged."""
        try:
            body = self.read(block.position + HEADER_BYTES, block.length)
            return decode_block(self.slot.second, block, body)
        except BlockDamagedError as exc:
            self.note(exc)
        except OSError as exc:
            self._note_medium(exc)
        return []


class _HourReader:
    """The files of an hour, opened together."""

    def __init__(self, path: str, entries: Sequence[Entry], bounds: Bounds) -> None:
        self._bounds = bounds
        self._files = Files(_SLOTS_OPEN_MAX, read_only=True)
        self._slots = [self._open(path, entry) for entry in entries]
        self._seen: set[int] = set()

    def close(self) -> None:
        self._files.close()

    @property
    def damages(self) -> list[Damage]:
        return [slot.damage for slot in self._slots if slot.damage is not None]

    def _open(self, path: str, entry: Entry) -> _SlotFile:
        slot = Slot.of_entry(entry)
        name = f"{path}/slots/{hour_name(entry.second // HOUR)}/{slot.name}"
        opened = _SlotFile(entry, slot, partial(self._files.read_at, name))
        opened.open(self._bounds)
        return opened

    def read(self) -> Iterator[Rows | Damage]:
        marks = self._marks()
        for slot in self._slots:
            for block in slot.blocks:
                frames = self._records(slot.decode(block), marks)
                if frames:
                    yield Rows(_slot_ms(slot.entry), frames)
        yield from self.damages

    def _marks(self) -> dict[int, int]:
        """Every mark of the hour, by the offset that it marks: it may lie in a later block than
        its record, or in another slot while one is opening, and before the record if it moved.
        """
        return {
            offset: mark
            for slot in self._slots
            for block in slot.blocks
            if block.has_marks
            for _, offset, mark, _ in slot.decode(block)
            if mark != NO_MARK
        }

    def _records(self, rows: Iterable[Frame], marks: dict[int, int]) -> list[Frame]:
        from_ms, to_ms = self._bounds
        seen = self._seen
        found = []
        for key_ms, offset, _, payload in rows:
            if payload is not MARK_ONLY and from_ms <= key_ms < to_ms and offset not in seen:
                seen.add(offset)
                found.append((key_ms, offset, marks.get(offset, NO_MARK), payload))
        return found


def _unreadable(what: str, exc: OSError) -> StoreError:
    return StoreError(
        f"can't read {what}: {exc.strerror}; run as the user of the service, or read a copy"
    )
