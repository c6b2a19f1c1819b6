"""Byte layout of a slot's file: blocks of rows, in the order in which they were written. A row is a
record, or a mark for an earlier record.

A block holds the rows of one or more shards. In this module, a run is the rows of one shard in a
block, in key order. It names its shard by a generation: the number of the shard's store, which is a
new one whenever the shard starts over. Rows are stored as columns, because C code packs and unpacks
columns (record by record, the same work takes four times as long)::

    header, 24 bytes, little endian, and the runs
      crc            u32   CRC32C of the rest of the header and of the runs, seeded with that of the
                           slot's start and the block's position, both i64
      body_crc       u32   CRC32C of the body
      length         u32   bytes of the body
      version        u8    6
      flags          u8    1: the body has a column of marks
      runs           u16   number of runs
      first_ms       u32   lowest key_ms, less the slot's start
      last_ms        u32   highest key_ms, less the slot's start
      generation     u32 x runs   ascending
      rows           u32 x runs   number of rows
    body
      key        u32 x count   key_ms less the slot's start; count is the sum of rows
      offset     i64 x count
      size       u32 x count   bytes of payload; 0xFFFFFFFF: no record, a mark for an earlier one
      mark       i64 x count   only with flag 1; -1: not marked
      payloads, one after another

A header's checksum is valid for one position in one slot only, so a block that was moved or copied
from another slot is detected. Header and body have separate checksums, because a reader skips
bodies by their headers.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from itertools import accumulate, pairwise, repeat
from operator import itemgetter
from struct import Struct
from typing import TYPE_CHECKING, Final

import google_crc32c

from delayservice.store.base import NO_MARK, Frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    # The number of a shard's store (generation), and rows of that shard in key order.
    Run = tuple[int, Sequence[Frame]]

HEADER = Struct("<IIIBBHII")
HEADER_BYTES: Final = 24
VERSION: Final = 1
ROWS_MAX: Final = 4096
# A run with more payload bytes, or more than ``ROWS_MAX`` rows, is divided; a single larger payload
# has a block of its own.
BODY_BYTES_MAX: Final = 1 << 20

# Largest number of bytes of a block that short runs of several shards share. Without sharing,
# shards with few records would have a block for each row; but a reader of one shard reads the whole
# block.
SHARED_BYTES_MAX: Final = 64 << 10

_ROW_BYTES: Final = 16
_RUN_BYTES: Final = 8
_HAS_MARKS: Final = 1
_MARK_SIZE: Final = 0xFFFF_FFFF
_READ_BYTES: Final = 4096
_BIG_ENDIAN: Final = sys.byteorder == "big"
_PLACE: Final = Struct("<qq")
_extend = google_crc32c.extend
_checksum = google_crc32c.value
_key_ms_of, _offset_of, _mark_of, _payload_of = map(itemgetter, range(4))

if HEADER.size != HEADER_BYTES:
    raise AssertionError(HEADER.size)


class MarkOnly(bytes):
    """Payload type of a row that is only a mark. ``MARK_ONLY`` is compared by identity."""

    __slots__ = ()


MARK_ONLY: Final = MarkOnly()


class BlockDamagedError(ValueError):
    """Error for a block that is cut short or has a wrong checksum; caught within the store code."""


class Block:
    """Header of a block, decoded and checked; ``BlockDamagedError`` is raised if it is not sound.

    Attributes:
        position: byte position of the header in the slot's file.
        generations: numbers of the shards' stores that have rows in the block, ascending.
        starts: index of the first row of each shard, in the order of ``generations``, and last the
            number of all rows.
    """

    __slots__ = (
        "body_crc",
        "body_position",
        "first_ms",
        "generations",
        "has_marks",
        "last_ms",
        "length",
        "position",
        "starts",
    )

    def __init__(self, data: bytes, start_ms: int, position: int) -> None:
        if len(data) < HEADER_BYTES:
            raise BlockDamagedError(f"a block header is cut short at byte {position}")
        fields: tuple[int, ...] = HEADER.unpack_from(data)
        crc, self.body_crc, self.length, version, flags, runs, first_ms, last_ms = fields
        middle, end = HEADER_BYTES + _RUN_BYTES * runs // 2, HEADER_BYTES + _RUN_BYTES * runs
        if crc != _sum(start_ms, position, data[4:end]) or version != VERSION:
            raise BlockDamagedError(f"the block header at byte {position} fails its checksum")
        self.position, self.body_position = position, position + end
        self.has_marks = bool(flags & _HAS_MARKS)
        self.first_ms, self.last_ms = start_ms + first_ms, start_ms + last_ms
        self.generations = unpack("I", data[HEADER_BYTES:middle])
        self.starts = array("I", accumulate(unpack("I", data[middle:end]), initial=0))

    @property
    def end(self) -> int:
        return self.body_position + self.length

    @property
    def rows(self) -> int:
        """Number of rows in the block, of all shards together."""
        return self.starts[-1]

    def bytes_of(self, rows: int) -> int:
        # Estimated by the share of the rows in the block.
        return (self.end - self.position) * rows // self.rows

    def run(self, generation: int) -> tuple[int, int]:
        """Return the range ``[start, stop)`` of indexes of a shard's rows; there must be some."""
        at = bisect_left(self.generations, generation)
        return self.starts[at], self.starts[at + 1]


class Body:
    """Body of a block: the rows, checked against the header; raises ``BlockDamagedError``."""

    __slots__ = ("_data", "_ends", "_keys", "_marks", "_offsets", "_sizes", "_start_ms")

    def __init__(self, start_ms: int, block: Block, data: bytes) -> None:
        if len(data) != block.length or block.body_crc != _checksum(data):
            raise BlockDamagedError(f"the block at byte {block.position} fails its checksum")
        count = block.rows
        self._start_ms = start_ms
        self._data = data
        self._keys = unpack("I", data[: 4 * count])
        self._offsets = unpack("q", data[4 * count : 12 * count])
        self._sizes = sizes = unpack("I", data[12 * count : 16 * count])
        self._marks: array[int] | None = None
        position = 16 * count
        if block.has_marks:
            self._marks = unpack("q", data[position : position + 8 * count])
            position += 8 * count
            sizes = array("I", [0 if size == _MARK_SIZE else size for size in sizes])
        self._ends = array("I", accumulate(sizes, initial=position))

    def rows(
        self, start: int, stop: int, after_ms: int = -1, upto_ms: int = sys.maxsize
    ) -> list[Frame]:
        """Return the rows of one shard with indexes in ``[start, stop)`` and ``after_ms <= key_ms
        <= upto_ms``.
        """
        start_ms = self._start_ms
        start = bisect_left(self._keys, after_ms - start_ms, start, stop)
        stop = bisect_right(self._keys, upto_ms - start_ms, start, stop)
        data, marks = self._data, self._marks
        keys = [start_ms + key for key in self._keys[start:stop]]
        payloads = [data[a:b] for a, b in pairwise(self._ends[start : stop + 1])]
        if marks is None:
            return list(zip(keys, self._offsets[start:stop], repeat(NO_MARK), payloads))
        sizes = self._sizes[start:stop]
        payloads = [MARK_ONLY if s == _MARK_SIZE else p for s, p in zip(sizes, payloads)]  # noqa: B905
        return list(zip(keys, self._offsets[start:stop], marks[start:stop], payloads))  # noqa: B905


def count_records(rows: Sequence[Frame]) -> int:
    if max(map(_mark_of, rows), default=NO_MARK) == NO_MARK:
        return len(rows)
    return len(rows) - sum([row[3] is MARK_ONLY for row in rows])


def bounds_of(rows: Sequence[Frame]) -> tuple[int, int]:
    """Return the lowest source offset of ``rows``, and one above their highest offset or mark."""
    offsets = list(map(_offset_of, rows))
    return min(offsets), max(*offsets, *map(_mark_of, rows)) + 1


def sort_rows(rows: Iterable[Frame]) -> list[Frame]:
    # Two stable sorts by one integer each take a third of the time of one sort by tuples
    # (``tests.store_bench --case burst``).
    found = sorted(rows, key=_offset_of)
    found.sort(key=_key_ms_of)
    return found


def encode_blocks(start_ms: int, runs: Iterable[Run], position: int) -> bytes:
    """Return the bytes of the blocks that hold the given runs, which are sorted by generation, for
    byte ``position`` of the file. The payload of a mark is ``MARK_ONLY``.
    """
    parts: list[bytes] = []
    for group in _groups(runs):
        rest, body = _encode_block(start_ms, group)
        parts += (_sum(start_ms, position, rest).to_bytes(4, "little"), rest, body)
        position += 4 + len(rest) + len(body)
    return b"".join(parts)


def _sum(start_ms: int, position: int, rest: bytes) -> int:
    found: int = _extend(_checksum(_PLACE.pack(start_ms, position)), rest)
    return found


def _groups(runs: Iterable[Run]) -> Iterator[list[Run]]:
    # Long runs (rows of one shard) are divided among several blocks, and short ones share a block.
    group: list[Run] = []
    group_bytes = 0
    for generation, rows in runs:
        size = sum(map(len, map(_payload_of, rows))) + _ROW_BYTES * len(rows)
        if size > SHARED_BYTES_MAX:
            yield from ([(generation, part)] for part in _cut(rows))
            continue
        if group_bytes + size > SHARED_BYTES_MAX:
            yield group
            group, group_bytes = [], 0
        group.append((generation, rows))
        group_bytes += size
    if group:
        yield group


def _cut(rows: Sequence[Frame]) -> Iterator[Sequence[Frame]]:
    for first in range(0, len(rows), ROWS_MAX):
        part = rows[first : first + ROWS_MAX]
        if sum(map(len, map(_payload_of, part))) <= BODY_BYTES_MAX:
            yield part
            continue
        start = body_bytes = 0
        for position, row in enumerate(part):
            size = len(row[3])
            if position > start and body_bytes + size > BODY_BYTES_MAX:
                yield part[start:position]
                start, body_bytes = position, 0
            body_bytes += size
        yield part[start:]


def _encode_block(start_ms: int, group: Sequence[Run]) -> tuple[bytes, bytes]:
    rows = [row for _, run in group for row in run]
    keys, offsets, marks, payloads = zip(*rows, strict=True)
    has_marks = max(marks) != NO_MARK
    columns = [
        pack("I", [key - start_ms for key in keys]),
        pack("q", offsets),
        pack("I", map(len, payloads)),
    ]
    if has_marks:
        columns[2] = pack("I", [_MARK_SIZE if p is MARK_ONLY else len(p) for p in payloads])
        columns.append(pack("q", marks))
    body = b"".join((*columns, *payloads))
    first_ms, last_ms = min(keys) - start_ms, max(keys) - start_ms
    flags = _HAS_MARKS if has_marks else 0
    header = HEADER.pack(
        0, _checksum(body), len(body), VERSION, flags, len(group), first_ms, last_ms
    )
    generations, counts = pack("I", [run[0] for run in group]), [len(run[1]) for run in group]
    return header[4:] + generations + pack("I", counts), body


def walk_blocks(
    read: Callable[[int, int], bytes], start_ms: int, position: int, size: int
) -> Iterator[Block]:
    """Yield the headers of the blocks of a slot's file from byte ``position``, at which a block
    begins, to byte ``size``, at which the last block must end. ``read``: function ``(position,
    size)`` that returns ``size`` bytes of the file.

    Raises:
        BlockDamagedError, OSError: the file is damaged or missing; the headers yielded before are
            valid.
    """
    data, base = b"", position
    while position < size:
        wanted = _header_bytes(data, position - base)
        while position + wanted > base + len(data):
            base, data = position, read(position, min(max(wanted, _READ_BYTES), size - position))
            if len(data) < wanted:
                break
            wanted = _header_bytes(data, 0)
        block = Block(data[position - base : position - base + wanted], start_ms, position)
        if block.end > size:
            raise BlockDamagedError(f"the block at byte {position} is cut short")
        yield block
        position = block.end


def _header_bytes(data: bytes, at: int) -> int:
    # Only the fixed part if ``data`` has less than that.
    if len(data) - at < HEADER_BYTES:
        return HEADER_BYTES
    runs: int = HEADER.unpack_from(data, at)[5]
    return HEADER_BYTES + _RUN_BYTES * runs


def pack(kind: str, values: Iterable[int]) -> bytes:
    column = array(kind, values)
    if _BIG_ENDIAN:
        column.byteswap()
    return column.tobytes()


def unpack(kind: str, data: bytes) -> array[int]:
    column: array[int] = array(kind)
    column.frombytes(data)
    if _BIG_ENDIAN:
        column.byteswap()
    return column
