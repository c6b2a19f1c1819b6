"""Open a slot: move its records to finer slots, before they are due.

An hour or a minute that is small is read as it is. A large one would have to be read in many
stretches, each of them through most of its blocks, so its records are written once more, to finer
slots. That is done a little at a time while the slot is near, and all at once only if it is due.

While a slot is opening, ``moved`` says how much of its file has gone to finer slots. The index has
it in the same sync as what those hold, so a crash at any moment leaves each record in one place.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from delayservice.errors import SlotDamagedError, StoreError
from delayservice.store.wheel.block import (
    HEADER_BYTES,
    BlockDamagedError,
    decode_block,
    parse_header,
)
from delayservice.store.wheel.near import cost_of, count_records

if TYPE_CHECKING:
    from collections.abc import Callable

    from delayservice.store.base import Frame
    from delayservice.store.files import Files
    from delayservice.store.wheel.block import Block
    from delayservice.store.wheel.filing import Filing
    from delayservice.store.wheel.slots import Slot


class Opener:
    """Moves records from wide slots to finer ones.

    Args:
        filing: the slots.
        files: where effects go.
        forget: told of a slot whose content changes under its window.
        set_aside: marks a slot whose file is damaged, and makes the error that says so.
        least_cost: a slot whose window costs at most so many bytes of memory is left as it is.
        step_rows: rows moved at once, or those of one block.
        buffer_bytes_max: bound of the filing's rows in memory.
    """

    def __init__(
        self,
        filing: Filing,
        files: Files,
        forget: Callable[[Slot], None],
        set_aside: Callable[[Slot, str], SlotDamagedError],
        least_cost: int,
        step_rows: int,
        buffer_bytes_max: int,
    ) -> None:
        self._filing = filing
        self._files = files
        self._forget = forget
        self._set_aside = set_aside
        self._least_cost = least_cost
        self._step_rows = step_rows
        self._buffer_bytes_max = buffer_bytes_max

    def ahead(self) -> None:
        """Move a few rows of a near slot. Failures wait: of a full disk until there is room, of a
        damaged slot until it is due.
        """
        slot = self._filing.table.near_closed(self._least_cost)
        if slot is not None and self._make_room():
            with suppress(SlotDamagedError):
                self._step(slot)

    def is_ready(self, slot: Slot) -> bool:
        """Open a slot that is due, if it is to be; whether it is left as it is and can be read.

        Raises:
            SlotDamagedError: its file is damaged.
        """
        opening = slot.finer is not None
        if slot.width == 1 or slot.stop is not None or not (opening or self._is_large(slot)):
            return True
        self.finish(slot)
        return False

    def _is_large(self, slot: Slot) -> bool:
        # With a full disk it is read as it is: slow, but delivered.
        return slot.cost > self._least_cost and self._make_room()

    def finish(self, slot: Slot) -> None:
        """Move everything that the slot holds.

        Raises:
            SlotDamagedError: its file is damaged.
        """
        while slot.is_held:
            self._make_room()
            self._step(slot)

    def _make_room(self) -> bool:
        if self._filing.buffer_bytes >= self._buffer_bytes_max:
            with suppress(StoreError):
                self._filing.flush_fullest(self._buffer_bytes_max // 2)
        return self._filing.buffer_bytes < self._buffer_bytes_max

    def _step(self, slot: Slot) -> None:
        if slot.finer is None:
            slot.finer = {}
        self._forget(slot)
        moved = 0
        while moved < self._step_rows and slot.moved < slot.size:
            rows = self._next_block(slot)
            slot.count -= count_records(rows)
            self._filing.take(rows)
            moved += len(rows)
        if moved < self._step_rows and slot.rows:
            rows, slot.rows = slot.rows[: self._step_rows], slot.rows[self._step_rows :]
            self._filing.buffer_bytes -= cost_of(rows)
            self._filing.take(rows)
        self._filing.touch(slot)
        if slot.moved == slot.size and not slot.rows:
            self._filing.doom(slot)

    def _next_block(self, slot: Slot) -> list[Frame]:
        path, position = self._filing.path_of(slot), slot.moved
        try:
            header = self._files.read_at(path, position, HEADER_BYTES)
            block = parse_header(header, position, slot.moved_crc)
            body = self._files.read_at(path, position + HEADER_BYTES, block.length)
            rows = decode_block(slot.second, block, body)
            _check_end(block, slot)
        except (BlockDamagedError, OSError) as exc:
            raise self._set_aside(slot, str(exc)) from exc
        slot.moved, slot.moved_crc = block.end, block.crc
        self._filing.file_bytes -= block.end - position
        return rows


def _check_end(block: Block, slot: Slot) -> None:
    if block.end > slot.size or (block.end == slot.size and block.crc != slot.crc):
        raise BlockDamagedError(f"the blocks do not end at byte {slot.size}")
