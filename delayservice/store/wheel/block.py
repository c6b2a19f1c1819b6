"""The bytes of a slot file: sorted blocks, whose checksums chain each to the one before.

A flush of the memory table writes a slot's rows as one or more blocks. Rows of a block are in key
order and lie in columns, because columns are packed and unpacked by C code (frame by frame, the
same work costs four times as much; ``bench pending`` pays for that)::

    header, 56 bytes, little endian
      crc        u32   CRC32C of the rest of the header, seeded with the crc of the block before;
                       for the first block with CRC32C of the slot's first second as i64 and its
                       width in seconds as u16
      body_crc   u32   CRC32C of the body
      length     u32   bytes of the body
      version    u8    2
      flags      u8    1: the body has a column of marks
      reserved   u16   0
      count      u32   rows
      reserved   u32   0
      first_ms, first_offset   i64, i64   lowest key
      last_ms, last_offset     i64, i64   highest key
    body
      key        u32 x count   key_ms less the slot's first millisecond
      offset     i64 x count
      size       u32 x count   bytes of payload; 0xFFFFFFFF: no record, a mark for an earlier one
      mark       i64 x count   only with flag 1; -1: none
      payloads, one after another

The chain makes the checksum of the last header one of the whole file: a block that is lost, moved
or taken from another slot breaks it. A header stands for itself, because a reader skips bodies by
what headers say of their keys.
"""

from __future__ import annotations

import sys
from array import array
from itertools import accumulate, pairwise, repeat
from operator import itemgetter
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import google_crc32c

from delayservice.store.base import NO_MARK, Frame

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from delayservice.core.cursor import Key

SLOT_MS: Final = 1000
HEADER = Struct("<IIIBBHIIqqqq")
HEADER_BYTES: Final = 56
VERSION: Final = 2
ROWS_MAX: Final = 4096
BODY_BYTES_MAX: Final = 1 << 20
"""A block is cut at either bound (a single larger payload is a block of its own)."""

_HAS_MARKS = 1
_MARK_SIZE = 0xFFFF_FFFF
_BIG_ENDIAN = sys.byteorder == "big"
_SLOT = Struct("<qH")
_extend = google_crc32c.extend
_checksum = google_crc32c.value
_payload_of = itemgetter(3)

if HEADER.size != HEADER_BYTES:
    raise AssertionError(HEADER.size)


class MarkOnly(bytes):
    """The payload of a row that is no record but a mark for one; compared by identity."""

    __slots__ = ()


MARK_ONLY: Final = MarkOnly()


class BlockDamagedError(ValueError):
    """A block is cut short, or its checksum is wrong. Never leaves the wheel."""


class Block(NamedTuple):
    """A block's header and where its body lies in the file."""

    position: int
    length: int
    rows: int
    flags: int
    first: Key
    last: Key
    body_crc: int
    crc: int

    @property
    def end(self) -> int:
        """Position of the byte after the block."""
        return self.position + HEADER_BYTES + self.length

    @property
    def has_marks(self) -> bool:
        """Whether any of its rows is marked, or is a mark."""
        return bool(self.flags & _HAS_MARKS)


def seed_of(second: int, width: int) -> int:
    """What the checksum chain of a slot starts from."""
    return int(_checksum(_SLOT.pack(second, width)))


def encode_blocks(second: int, rows: Sequence[Frame], crc: int) -> tuple[bytes, int, int]:
    """Rows in key order to blocks.

    Args:
        second: the slot's first, in epoch seconds.
        rows: frames, and marks whose payload is ``MARK_ONLY``.
        crc: checksum of the block before, or ``seed_of`` the slot.

    Returns:
        The bytes to write, the checksum of the last block, and how many bytes are payload.
    """
    parts: list[bytes] = []
    payload_bytes = 0
    for run, run_bytes in _cut(rows):
        data, crc = _encode_block(second * SLOT_MS, run, crc)
        parts += data
        payload_bytes += run_bytes
    return b"".join(parts), crc, payload_bytes


def _cut(rows: Sequence[Frame]) -> Iterator[tuple[Sequence[Frame], int]]:
    """Runs of rows, each with its bytes of payload."""
    for start in range(0, len(rows), ROWS_MAX):
        run = rows[start : start + ROWS_MAX]
        run_bytes = sum(map(len, map(_payload_of, run)))
        if run_bytes <= BODY_BYTES_MAX:
            yield run, run_bytes
        else:
            yield from _cut_by_bytes(run)


def _cut_by_bytes(rows: Sequence[Frame]) -> Iterator[tuple[Sequence[Frame], int]]:
    start = body_bytes = 0
    for position, row in enumerate(rows):
        size = len(row[3])
        if position > start and body_bytes + size > BODY_BYTES_MAX:
            yield rows[start:position], body_bytes
            start, body_bytes = position, 0
        body_bytes += size
    yield rows[start:], body_bytes


def _encode_block(start_ms: int, rows: Sequence[Frame], crc: int) -> tuple[list[bytes], int]:
    keys, offsets, marks, payloads = zip(*rows, strict=True)
    flags = 0
    columns = [
        _pack("I", [key - start_ms for key in keys]),
        _pack("q", offsets),
        _pack("I", map(len, payloads)),
    ]
    if max(marks) != NO_MARK:
        flags = _HAS_MARKS
        columns[2] = _pack("I", [_MARK_SIZE if p is MARK_ONLY else len(p) for p in payloads])
        columns.append(_pack("q", marks))
    body = b"".join((*columns, *payloads))
    bounds = (keys[0], offsets[0], keys[-1], offsets[-1])
    body_crc = _checksum(body)
    rest = HEADER.pack(0, body_crc, len(body), VERSION, flags, 0, len(rows), 0, *bounds)[4:]
    crc = _extend(crc, rest)
    return [crc.to_bytes(4, "little"), rest, body], crc


def parse_header(data: bytes, position: int, seed: int) -> Block:
    """A header that was read at ``position``, checked; ``seed`` is the crc of the one before.

    Raises:
        BlockDamagedError: it is cut short, its checksum is wrong or its version is unknown.
    """
    if len(data) < HEADER_BYTES:
        raise BlockDamagedError(f"a block header is cut short at byte {position}")
    crc, body_crc, length, version, flags, _, count, _, *keys = HEADER.unpack(data)
    if crc != _extend(seed, data[4:]) or version != VERSION:
        raise BlockDamagedError(f"the block header at byte {position} fails its checksum")
    first, last = (keys[0], keys[1]), (keys[2], keys[3])
    return Block(position, length, count, flags, first, last, body_crc, crc)


def decode_block(second: int, block: Block, body: bytes) -> list[Frame]:
    """Rows of a block in key order, checked.

    Raises:
        BlockDamagedError: the body is short or the checksum is wrong.
    """
    if len(body) != block.length or block.body_crc != _checksum(body):
        raise BlockDamagedError(f"the block at byte {block.position} fails its checksum")
    count, start_ms = block.rows, second * SLOT_MS
    keys = _unpack("I", body, 0, count)
    offsets = _unpack("q", body, 4 * count, count)
    sizes = _unpack("I", body, 12 * count, count)
    position = 16 * count
    if not block.has_marks:
        payloads = _slices(body, position, sizes)
        return list(zip([start_ms + k for k in keys], offsets, repeat(NO_MARK), payloads))
    marks = _unpack("q", body, position, count)
    marked = [size == _MARK_SIZE for size in sizes]
    sizes = array("I", [0 if m else s for s, m in zip(sizes, marked, strict=True)])
    payloads = _slices(body, position + 8 * count, sizes)
    payloads = [MARK_ONLY if m else p for p, m in zip(payloads, marked, strict=True)]
    return list(zip([start_ms + k for k in keys], offsets, marks, payloads, strict=True))


def _slices(body: bytes, position: int, sizes: Iterable[int]) -> list[bytes]:
    ends = list(accumulate(sizes, initial=position))
    return [body[a:b] for a, b in pairwise(ends)]


def _pack(kind: str, values: Iterable[int]) -> bytes:
    column = array(kind, values)
    if _BIG_ENDIAN:
        column.byteswap()
    return column.tobytes()


def _unpack(kind: str, body: bytes, position: int, count: int) -> array[int]:
    column: array[int] = array(kind)
    column.frombytes(body[position : position + count * column.itemsize])
    if _BIG_ENDIAN:
        column.byteswap()
    return column
