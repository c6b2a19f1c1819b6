"""Horizon: a small file that lists the durable content of the slot files of a wheel.

::

    horizon    magic      8 bytes   "DLYWHEEL"
               version    u32       6
               crc        u32       CRC32C of the rest
               content    msgpack, an array: the fields of ``WheelHorizon`` in order

It is written only after everything that it lists is durable, into a temporary file that is renamed.
Bytes of slot files beyond the listed sizes are cut off after a crash. A wheel whose horizon is
missing or damaged starts over at offset 0.
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
_VERSION: Final = 6


class HorizonDamagedError(ValueError):
    """Error for a damaged horizon. Callers within the wheel catch it."""


class ShardRow(msgspec.Struct, array_like=True, frozen=True):
    """Entry of one shard in the horizon.

    Attributes:
        number: its index in the columns of ``SlotRow``.
        generation: number of its runs in blocks.
        topic: hash of the topic's id, hexadecimal.
        partition: partition of the topic.
        stop_offset: the horizon S.
        has_ids: whether the id index has rows of this shard.
        label: label of the shard's store; see ``Store.label``.
    """

    number: int
    generation: int
    topic: str
    partition: int
    stop_offset: int
    has_ids: bool
    label: bytes


class LostRows(msgspec.Struct, array_like=True, frozen=True):
    """Rows of a shard in a slot that have to be read again from the log: those of source offsets
    ``[first_offset, stop_offset)``, of which ``count`` are records. Keys below ``from_ms`` have
    been read again already.
    """

    shard: int
    from_ms: int
    first_offset: int
    stop_offset: int
    count: int


class SlotRow(msgspec.Struct, array_like=True, frozen=True):
    """Durable content of a slot's file.

    Attributes:
        start_ms: the slot's start, epoch milliseconds.
        size: number of valid bytes at the start of the file.
        counts: column of the records of each shard, u32.
        firsts: column of the lowest offset of each shard's rows, i64.
        stops: column of one above the highest offset of each shard's rows and marks, i64; 0: no
            rows.
        floors: by shard number, the position below which its blocks are ignored; 0 if not listed.
        lost: rows of all shards that have to be read again.
    """

    start_ms: int
    size: int
    counts: bytes
    firsts: bytes
    stops: bytes
    floors: dict[int, int]
    lost: list[LostRows]


class WheelHorizon(msgspec.Struct, array_like=True, frozen=True):
    """Durable content of a wheel.

    Attributes:
        slot_ms: width of a slot, milliseconds.
        next_generation: the lowest generation not used yet.
        shards: all shards, in any order.
        slots: the slots that hold rows, in any order.
    """

    slot_ms: int
    next_generation: int
    shards: list[ShardRow]
    slots: list[SlotRow]


_decoder = msgspec.msgpack.Decoder(WheelHorizon)


def encode_horizon(horizon: WheelHorizon) -> bytes:
    """Return the bytes of a horizon file."""
    content = msgspec.msgpack.encode(horizon)
    return _HEAD.pack(_MAGIC, _VERSION, google_crc32c.value(content)) + content


def read_horizon(path: str) -> WheelHorizon:
    """Read the horizon of the wheel in folder ``path``.

    Raises:
        HorizonDamagedError: the horizon is damaged; the text says how.
        OSError: the file is missing, or the medium fails.
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
    """Replace the horizon atomically and durably; everything it lists must be durable already.

    Raises:
        StoreError: the disk is full or fails.
    """
    temporary = f"{path}/{NAME}.new"
    files.remove(temporary)
    files.write_at(temporary, 0, data)
    files.sync_file(temporary)
    files.replace(temporary, f"{path}/{NAME}")
    files.sync_dir(path)
