"""Horizon file: it lists the durable content of the slot files of a wheel.

::

    horizon    magic      8 bytes   "DLYWHEEL"
               version    u32       1
               crc        u32       CRC32C of the rest
               content    msgpack, an array: the fields of ``WheelHorizon`` in order

It is written only after everything that it lists is durable, into a temporary file that is then
renamed. After a crash, bytes of slot files beyond the listed sizes are cut off. A wheel whose
horizon file is missing or damaged starts over at offset 0. A row is a record, or a mark for an
earlier record. The generation is the number of a shard's store; a shard that starts over gets a new
one.
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final

import google_crc32c
import msgspec

if TYPE_CHECKING:
    from delayservice.store.files import Files

NAME: Final = "horizon"
_HEAD = Struct("<8sII")
_MAGIC: Final = b"DLYWHEEL"
_VERSION: Final = 1


class HorizonDamagedError(ValueError):
    """Error for a damaged horizon file; caught within the store code."""


class ShardRow(msgspec.Struct, array_like=True, frozen=True):
    """State of one shard in the horizon file.

    Attributes:
        number: index of the shard in the columns of ``SlotRow``.
        generation: number of the shard's store, by which its rows are found in slot files.
        topic: hash of the delay topic's id, hexadecimal.
        stop_offset: S, a source offset.
        has_ids: whether the id index has rows of this shard.
    """

    number: int
    generation: int
    topic: str
    partition: int
    stop_offset: int
    has_ids: bool
    label: bytes


class LostRows(msgspec.Struct, array_like=True, frozen=True):
    """Damaged records and marks of one shard in one slot, to be read again from the log.

    Attributes:
        shard: number of the shard in this wheel, as in ``ShardRow``.
        from_ms: key time, epoch milliseconds, below which rows have been read again already.
        first_offset: lowest source offset of the damaged records, and of those that are marked.
        stop_offset: one above the highest source offset of a record or mark.
    """

    shard: int
    from_ms: int
    first_offset: int
    stop_offset: int
    count: int


class SlotRow(msgspec.Struct, array_like=True, frozen=True):
    """Durable content of a slot's file, in the horizon file. A column is an array as little-endian
    bytes, with the shard's number as index.

    Attributes:
        size: number of valid bytes at the start of the file.
        counts: column of the number of each shard's records, including ``lost`` ones, u32.
        firsts: column of the lowest source offset of each shard's rows, i64.
        stops: column of one above the highest source offset of each shard's records and marks, i64;
            0: no rows.
        floors: by shard number, the byte position below which the shard's blocks are invalid; 0 for
            a shard that is not in it.
    """

    start_ms: int
    size: int
    counts: bytes
    firsts: bytes
    stops: bytes
    floors: dict[int, int]
    lost: list[LostRows]


class WheelHorizon(msgspec.Struct, array_like=True, frozen=True):
    """Durable content of a wheel; ``next_generation`` is the lowest number of a shard's store that
    was not used yet, and ``shards`` and ``slots`` are in any order.
    """

    slot_ms: int
    next_generation: int
    shards: list[ShardRow]
    slots: list[SlotRow]


_decoder = msgspec.msgpack.Decoder(WheelHorizon)


def encode_horizon(horizon: WheelHorizon) -> bytes:
    content = msgspec.msgpack.encode(horizon)
    return _HEAD.pack(_MAGIC, _VERSION, google_crc32c.value(content)) + content


def read_horizon(path: str) -> WheelHorizon:
    """Read and check the horizon file of the wheel in folder ``path``. Raises
    ``HorizonDamagedError`` if it is damaged, and ``OSError`` if it can't be read.
    """
    data = Path(path, NAME).read_bytes()
    if len(data) < _HEAD.size:
        raise HorizonDamagedError(f"the horizon has {len(data)} bytes of {_HEAD.size} at least")
    magic, version, crc = _HEAD.unpack_from(data)
    content = data[_HEAD.size :]
    if magic != _MAGIC or version != _VERSION or crc != google_crc32c.value(content):
        raise HorizonDamagedError("the horizon fails its checksum")
    try:
        return _decoder.decode(content)
    except msgspec.MsgspecError as exc:
        raise HorizonDamagedError(f"the horizon can't be read: {exc}") from exc


def write_horizon(path: str, files: Files, data: bytes) -> None:
    """Replace the horizon file, atomically and durably. Everything that it lists must be durable
    already.
    """
    temporary = f"{path}/{NAME}.new"
    files.remove(temporary)
    files.write_at(temporary, 0, data)
    files.sync_file(temporary)
    files.replace(temporary, f"{path}/{NAME}")
    files.sync_dir(path)
