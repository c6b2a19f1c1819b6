"""The bytes of a slot file: blocks of one shard each, in the order in which they were written.

Rows of a block are in key order and lie in columns, because columns are packed and unpacked by C
code (frame by frame, the same work costs four times as much; ``bench pending`` pays for that)::

    header, 56 bytes, little endian
      crc            u32   CRC32C of the rest of the header, seeded with that of the slot's start
                           and the block's position, both i64
      body_crc       u32   CRC32C of the body
      length         u32   bytes of the body
      version        u8    5
      flags          u8    1: the body has a column of marks
      reserved       u16   0
      count          u32   rows
      shard          u32   number of the shard
      generation     u32   of the shard's store: a shard that comes back has another one
      first_ms       u32   lowest key_ms, less the slot's start
      last_ms        u32   highest key_ms, less the slot's start
      reserved       u32   0
      first_offset   i64   lowest offset of a row
      stop_offset    i64   above the highest offset of a row or mark
    body
      key        u32 x count   key_ms less the slot's start
      offset     i64 x count
      size       u32 x count   bytes of payload; 0xFFFFFFFF: no record, a mark for an earlier one
      mark       i64 x count   only with flag 1; -1: not marked
      payloads, one after another

A header's checksum holds for one place in one slot only, so a block that was moved or taken from
another slot is noticed. A header stands for itself, because a reader skips bodies by what headers
say.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from itertools import accumulate, pairwise, repeat
from operator import itemgetter
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import google_crc32c

from delayservice.store.base import NO_MARK, Frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

HEADER = Struct("<IIIBBHIIIIIIqq")
HEADER_BYTES: Final = 56
VERSION: Final = 5
ROWS_MAX: Final = 4096
BODY_BYTES_MAX: Final = 1 << 20
"""A block is cut at either bound (a single larger payload is a block of its own)."""

_HAS_MARKS = 1
_MARK_SIZE = 0xFFFF_FFFF
_READ_BYTES = 1 << 18
_BIG_ENDIAN = sys.byteorder == "big"
_PLACE = Struct("<qq")
_extend = google_crc32c.extend
_checksum = google_crc32c.value
_key_ms_of, _offset_of, _mark_of, _payload_of = map(itemgetter, range(4))

if HEADER.size != HEADER_BYTES:
    raise AssertionError(HEADER.size)


class MarkOnly(bytes):
    """The payload of a row that is no record but a mark for one; compared by identity."""

    __slots__ = ()


MARK_ONLY: Final = MarkOnly()


class BlockDamagedError(ValueError):
    """A block is cut short, or its checksum is wrong. Never leaves the wheel."""


class Block(NamedTuple):
    """A block's header, and where it lies in the file."""

    position: int
    length: int
    rows: int
    has_marks: bool
    shard: int
    generation: int
    first_ms: int
    last_ms: int
    first_offset: int
    stop_offset: int
    body_crc: int

    @property
    def end(self) -> int:
        """Position of the byte after the block."""
        return self.position + HEADER_BYTES + self.length


def count_records(rows: Sequence[Frame]) -> int:
    """Count the rows that are records and not marks only."""
    if max(map(_mark_of, rows), default=NO_MARK) == NO_MARK:
        return len(rows)
    return len(rows) - sum([row[3] is MARK_ONLY for row in rows])


def bounds_of(rows: Sequence[Frame]) -> tuple[int, int]:
    """Return the lowest offset of rows, and one above the highest offset or mark."""
    offsets = list(map(_offset_of, rows))
    return min(offsets), max([*offsets, *map(_mark_of, rows)]) + 1


def sort_rows(rows: Iterable[Frame]) -> list[Frame]:
    """Return rows of the log's order in key order.

    Two stable sorts by an integer each, the first of what is sorted already, take a third of the
    time that comparing tuples takes (``tests.store_bench --case burst``).
    """
    found = sorted(rows, key=_offset_of)
    found.sort(key=_key_ms_of)
    return found


def encode_blocks(
    start_ms: int, shard: int, generation: int, rows: Sequence[Frame], position: int
) -> list[bytes]:
    """Encode rows in key order as blocks.

    Args:
        start_ms: the slot's start, epoch milliseconds.
        shard: number of the shard.
        generation: of the shard's store.
        rows: frames, and marks whose payload is ``MARK_ONLY``.
        position: where in the file the first block goes.

    Returns:
        The bytes to write, in pieces.
    """
    parts: list[bytes] = []
    for run in _cut(rows):
        rest, body = _encode_block(start_ms, shard, generation, run)
        crc = _extend(_checksum(_PLACE.pack(start_ms, position)), rest)
        parts += (crc.to_bytes(4, "little"), rest, body)
        position += HEADER_BYTES + len(body)
    return parts


def _cut(rows: Sequence[Frame]) -> Iterator[Sequence[Frame]]:
    for start in range(0, len(rows), ROWS_MAX):
        run = rows[start : start + ROWS_MAX]
        if sum(map(len, map(_payload_of, run))) <= BODY_BYTES_MAX:
            yield run
        else:
            yield from _cut_by_bytes(run)


def _cut_by_bytes(rows: Sequence[Frame]) -> Iterator[Sequence[Frame]]:
    start = body_bytes = 0
    for position, row in enumerate(rows):
        size = len(row[3])
        if position > start and body_bytes + size > BODY_BYTES_MAX:
            yield rows[start:position]
            start, body_bytes = position, 0
        body_bytes += size
    yield rows[start:]


def _encode_block(
    start_ms: int, shard: int, generation: int, rows: Sequence[Frame]
) -> tuple[bytes, bytes]:
    keys, offsets, marks, payloads = zip(*rows, strict=True)
    flags, top_mark = 0, max(marks)
    columns = [
        pack("I", [key - start_ms for key in keys]),
        pack("q", offsets),
        pack("I", map(len, payloads)),
    ]
    if top_mark != NO_MARK:
        flags = _HAS_MARKS
        columns[2] = pack("I", [_MARK_SIZE if p is MARK_ONLY else len(p) for p in payloads])
        columns.append(pack("q", marks))
    body = b"".join((*columns, *payloads))
    rest = HEADER.pack(
        0,
        _checksum(body),
        len(body),
        VERSION,
        flags,
        0,
        len(rows),
        shard,
        generation,
        keys[0] - start_ms,
        keys[-1] - start_ms,
        0,
        min(offsets),
        max([*offsets, top_mark]) + 1,
    )[4:]
    return rest, body


def parse_header(data: bytes, start_ms: int, position: int) -> Block:
    """Check and return a header that was read at ``position`` of a slot's file.

    Raises:
        BlockDamagedError: it is cut short, its checksum is wrong or its version is unknown.
    """
    if len(data) < HEADER_BYTES:
        raise BlockDamagedError(f"a block header is cut short at byte {position}")
    fields = HEADER.unpack(data)
    crc, body_crc, length, version, flags, _, count, shard, generation, first, last, _, *span = (
        fields
    )
    seed = _checksum(_PLACE.pack(start_ms, position))
    if crc != _extend(seed, data[4:]) or version != VERSION:
        raise BlockDamagedError(f"the block header at byte {position} fails its checksum")
    marked = bool(flags & _HAS_MARKS)
    return Block(
        position, length, count, marked, shard, generation, first, last, span[0], span[1], body_crc
    )


def walk_blocks(
    read: Callable[[int, int], bytes], start_ms: int, position: int, size: int
) -> Iterator[Block]:
    """Yield the blocks of a slot's file from ``position`` to ``size``, by their headers.

    Args:
        read: bytes of the file, by position and size.
        start_ms: the slot's start.
        position: where a block begins.
        size: where the last block must end.

    Raises:
        BlockDamagedError, OSError: the file is damaged or missing; what came before is good.
    """
    data, base = b"", position
    while position < size:
        if position + HEADER_BYTES > base + len(data):
            base, data = position, read(position, min(_READ_BYTES, size - position))
        at = position - base
        block = parse_header(data[at : at + HEADER_BYTES], start_ms, position)
        if block.end > size:
            raise BlockDamagedError(f"the block at byte {position} is cut short")
        yield block
        position = block.end


def decode_block(
    start_ms: int,
    block: Block,
    body: bytes,
    after_ms: int = -1,
    upto_ms: int = sys.maxsize,
) -> list[Frame]:
    """Return the rows of a block with ``after_ms <= key_ms <= upto_ms``, in key order.

    Raises:
        BlockDamagedError: the body is short or the checksum is wrong.
    """
    if len(body) != block.length or block.body_crc != _checksum(body):
        raise BlockDamagedError(f"the block at byte {block.position} fails its checksum")
    count = block.rows
    keys = unpack("I", body[: 4 * count])
    sizes = unpack("I", body[12 * count : 16 * count])
    position = 16 * count
    marks: Iterable[int] = repeat(NO_MARK)
    is_mark: list[bool] = []
    if block.has_marks:
        marks = unpack("q", body[position : position + 8 * count])
        position += 8 * count
        is_mark = [size == _MARK_SIZE for size in sizes]
        sizes = array("I", [0 if m else s for s, m in zip(sizes, is_mark, strict=True)])
    start, stop = 0, count
    if after_ms > start_ms + block.first_ms:
        start = bisect_left(keys, after_ms - start_ms)
    if upto_ms < start_ms + block.last_ms:
        stop = bisect_right(keys, upto_ms - start_ms)
    offsets = unpack("q", body[4 * count + 8 * start : 4 * count + 8 * stop])
    if start or stop < count:
        position += sum(sizes[:start])
        keys, sizes = keys[start:stop], sizes[start:stop]
    ends = list(accumulate(sizes, initial=position))
    payloads = [body[a:b] for a, b in pairwise(ends)]
    if is_mark:
        marks = marks[start:stop]  # type: ignore[index]
        chosen = zip(payloads, is_mark[start:stop], strict=True)
        payloads = [MARK_ONLY if m else p for p, m in chosen]
    return list(zip([start_ms + k for k in keys], offsets, marks, payloads))  # noqa: B905


def pack(kind: str, values: Iterable[int]) -> bytes:
    """Return a column of integers as little-endian bytes."""
    column = array(kind, values)
    if _BIG_ENDIAN:
        column.byteswap()
    return column.tobytes()


def unpack(kind: str, data: bytes) -> array[int]:
    """Return the integers of a column."""
    column: array[int] = array(kind)
    column.frombytes(data)
    if _BIG_ENDIAN:
        column.byteswap()
    return column
