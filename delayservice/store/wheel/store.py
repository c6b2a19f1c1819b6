"""``WheelStore``: one shard of a worker's wheel, as a ``Store``.

Reads take place in windows: rows (records and marks) of a slot, or of a part of it, in memory.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

import msgspec

from delayservice.base.errors import SlotDamagedError, StoreError
from delayservice.contract.entry import OFFSET_MAX
from delayservice.engine.cursor import Cursor, Key
from delayservice.store.base import CountRange, Frame, Mark, Named, Scanner, Store, StoreStats
from delayservice.store.wheel.block import MARK_ONLY, BlockDamagedError
from delayservice.store.wheel.window import DueReader, Window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from delayservice.store.wheel.horizon import LostRows
    from delayservice.store.wheel.slots import Slot, SlotShard
    from delayservice.store.wheel.wheel import Wheel

# Approximate largest number of records that one rebuild after damage reads again from the log and
# holds in memory.
REREAD_ROWS: Final = 50_000


class WheelStore(Store):
    """Store of one shard in the wheel that all shards of its worker share. ``topic``: hash of the
    delay topic's id.
    """

    def __init__(self, wheel: Wheel, topic: str, partition: int) -> None:
        self._wheel = wheel
        self._slots = wheel.slots
        self._place = topic, partition
        self._attached: SlotShard | None = None
        self._scanning: WeakSet[DueReader] = WeakSet()

    # --- life ----------------------------------------------------------------------------------

    def open(self) -> int:
        # Slot files are not read, so that a start takes no time.
        shard = self._attached = self._wheel.attach(*self._place)
        self._hand = self._make_hand(shard, chunk=REREAD_ROWS)
        self._scanning = WeakSet()
        shard.hands = lambda: [self._hand, *self._scanning]
        return shard.stop_offset

    @property
    def _shard(self) -> SlotShard:
        if self._attached is None:
            raise StoreError(f"the store of shard {self._place} is not open; open it first")
        return self._attached

    @property
    def label(self) -> bytes:
        return self._shard.label

    def set_label(self, label: bytes) -> None:
        self._shard.label = label
        self._slots.has_changed = True

    def reset(self) -> None:
        self._wheel.start_over(self._shard)

    def close(self) -> None:
        shard, self._attached = self._shard, None
        self._wheel.detach(shard)

    # --- store ---------------------------------------------------------------------------------

    def append(
        self,
        frames: Sequence[Frame],
        named: Sequence[Named],
        marks: Sequence[Mark],
        stop_offset: int,
    ) -> None:
        # Flush or sync first, so that a failure of the disk leaves the store as it was.
        shard = self._shard
        self._wheel.make_room()
        if named or marks:
            shard.ids.append(named, marks, stop_offset)
        self._slots.take(shard, frames)
        if marks:
            rows = [(key_ms, offset, mark, MARK_ONLY) for _, key_ms, offset, mark in marks]
            self._slots.take(shard, rows)
        self._slots.count(shard, len(frames))
        shard.stop_offset = stop_offset

    # --- due -----------------------------------------------------------------------------------

    def read_due(self, after: Key, upto_ms: int, limit: int) -> list[Frame]:
        # If there are few rows, a window of the next slot is loaded early.
        self._wheel.advance()
        found = self._hand.read(after, upto_ms, limit)
        if len(found) < limit:
            self._hand.preload(upto_ms)
        return found

    def next_due_ms(self, after: Key) -> int | None:
        return self._hand.next_due_ms(after)

    def scanner(self, *, for_repair: bool = False) -> Scanner:
        hand = self._make_hand(self._shard, chunk=REREAD_ROWS if for_repair else OFFSET_MAX)
        self._scanning.add(hand)
        return Scanner(hand.read)

    def _make_hand(self, shard: SlotShard, chunk: int) -> DueReader:
        load = partial(self._load, chunk)
        return DueReader(
            shard.starts, self._slots.slot_ms, shard.waiting, load, self._wheel.windows
        )

    def _load(self, chunk: int, start_ms: int, after: Key) -> Window:
        """Return a window (rows in memory) of a slot with the rows above ``after``, up to the first
        damaged row. Raises ``SlotDamagedError`` if it would begin with one; ``chunk``: see
        ``_damage``.
        """
        shard, slots = self._shard, self._slots
        slot = slots.by_start[start_ms]
        window = Window(start_ms, after, self._wheel.windows.share)
        lost = slot.lost.get(shard.number)
        if lost is not None and after >= (lost.from_ms - 1, OFFSET_MAX):
            raise self._damage(slot, lost, chunk)
        try:
            slots.load(shard, slot, window)
        except (BlockDamagedError, OSError) as exc:
            slots.condemn(slot, str(exc))
            return self._load(chunk, start_ms, after)
        if lost is not None:
            window.end_with((lost.from_ms - 1, OFFSET_MAX))
        waiting = shard.waiting.get(start_ms, [])
        window.add(waiting)
        window.seen = len(waiting)
        return window

    # --- damage --------------------------------------------------------------------------------

    def _damage(self, slot: Slot, lost: LostRows, chunk: int) -> SlotDamagedError:
        """Return the error that states the range to read again from the log: the damaged rows
        ``lost`` of ``slot``; or a part of them, if they are more than ``chunk`` records; or those
        of the next slots too, if all together are at most ``chunk`` records. ``OFFSET_MAX`` as
        ``chunk``: the one slot.
        """
        number = self._shard.number
        width = slot.stop_ms - slot.start_ms
        if lost.count > chunk:
            stop_ms = min(lost.from_ms + max(width * chunk // lost.count, 1), slot.stop_ms)
            return _damaged(slot, stop_ms, [lost])
        found, count, stop_ms = [lost], lost.count, slot.stop_ms
        starts = self._shard.starts
        for start_ms in starts[starts.index(slot.start_ms) + 1 :]:
            next_slot = self._slots.by_start[start_ms]
            following = next_slot.lost.get(number)
            if following is None or following.from_ms > start_ms or count > chunk:
                break
            if chunk == OFFSET_MAX or count + following.count > chunk:
                break
            found.append(following)
            count, stop_ms = count + following.count, next_slot.stop_ms
        return _damaged(slot, stop_ms, found)

    def rebuild(self, start_ms: int, stop_ms: int, frames: Sequence[Frame]) -> None:
        # In a damaged slot, records that were appended or read again after the damage was found are
        # kept.
        shard = self._shard
        kept: list[tuple[int, int, int]] = []  # start_ms, stop_ms, first offset
        for slot in self._slots_within(start_ms, stop_ms):
            lost = slot.lost.get(shard.number)
            if lost is None:
                try:
                    outside = self._outside(slot, start_ms, stop_ms)
                except SlotDamagedError:  # all of it is read again when it is due
                    kept.append((slot.start_ms, slot.stop_ms, 0))
                else:
                    self._slots.replace(shard, slot.start_ms, outside)
            elif start_ms <= lost.from_ms < stop_ms:
                self._found_again(slot, lost, stop_ms)
                kept.append((slot.start_ms, lost.from_ms, 0))
                kept.append((lost.from_ms, slot.stop_ms, lost.stop_offset))
            else:
                kept.append((slot.start_ms, slot.stop_ms, 0))
        inside = [
            frame
            for frame in frames
            if start_ms <= frame[0] < stop_ms
            and not any(a <= frame[0] < b and frame[1] >= first for a, b, first in kept)
        ]
        self._slots.take(shard, inside)
        self._slots.count(shard, len(inside))

    def _found_again(self, slot: Slot, lost: LostRows, stop_ms: int) -> None:
        number = self._shard.number
        self._slots.has_changed = True
        for hand in self._shard.hands():
            hand.forget(slot.start_ms)
        if stop_ms < slot.stop_ms:
            slot.lost[number] = msgspec.structs.replace(lost, from_ms=stop_ms)
            return
        del slot.lost[number]
        slot.counts[number] -= lost.count
        self._slots.count(self._shard, -lost.count)

    def _outside(self, slot: Slot, start_ms: int, stop_ms: int) -> list[Frame]:
        scanner, kept = self.scanner(), list[Frame]()
        spans = ((slot.start_ms, start_ms), (stop_ms, slot.stop_ms))
        for first_ms, last_ms in spans:
            if first_ms < last_ms:
                kept += scanner.frames((first_ms - 1, OFFSET_MAX), last_ms - 1)
        return kept

    def _slots_within(self, start_ms: int, stop_ms: int) -> list[Slot]:
        slots = map(self._slots.by_start.__getitem__, list(self._shard.starts))
        return [slot for slot in slots if slot.stop_ms > start_ms and slot.start_ms < stop_ms]

    # --- ids -----------------------------------------------------------------------------------

    def latest_unmarked(self, record_id: bytes, below: int) -> Key | None:
        shard = self._shard
        return shard.ids.latest_unmarked(record_id, min(below, shard.stop_offset))

    def marked_from(self, mark: int) -> list[tuple[int, Key]]:
        return self._shard.ids.marked_from(mark, self._shard.stop_offset)

    # --- prune and sync ------------------------------------------------------------------------

    def prune(self, cursor: Cursor) -> None:
        shard = self._shard
        self._wheel.advance()
        shard.cursor_key = cursor.key
        while shard.starts and shard.starts[0] + self._slots.slot_ms <= cursor.key[0]:
            self._slots.drop(shard, shard.starts[0])
        shard.ids.prune(cursor)

    def sync(self, *, wait: bool = True) -> int:
        if wait:
            self._wheel.sync()
        else:
            self._wheel.sync_soon()
        return self._shard.durable_offset

    def lumps(self, start_ms: int, stop_ms: int) -> list[CountRange]:
        # No file is read: one count for each slot.
        return [
            (slot.start_ms, slot.stop_ms, self._slots.records_in(self._shard, slot))
            for slot in self._slots_within(start_ms, stop_ms)
        ]

    def stats(self) -> StoreStats:
        self._wheel.advance()
        shard = self._shard
        passed = self._hand.passed(shard.starts[0], shard.cursor_key) if shard.starts else 0
        stored = self._slots.bytes_of(shard)
        return StoreStats(shard.pending - passed, stored, shard.durable_offset)


def _damaged(slot: Slot, stop_ms: int, lost: Sequence[LostRows]) -> SlotDamagedError:
    return SlotDamagedError(
        f"the slot of {slot.start_ms} ms waits to be read again",
        start_ms=lost[0].from_ms,
        stop_ms=stop_ms,
        first_offset=min(one.first_offset for one in lost),
        stop_offset=max(one.stop_offset for one in lost),
    )
