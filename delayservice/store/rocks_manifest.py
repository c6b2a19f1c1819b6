"""A check that RocksDB leaves out when it opens a database: lengths in its MANIFEST.

The MANIFEST lists the tables that count. It is a log of records in blocks of 32 KiB::

    crc u32, length u16, type u8        little endian; crc32c of type and content, masked
    content                             length bytes

RocksDB takes a record that reaches beyond the end of the file for one that a crash cut off, and
leaves out all from there on. So a damaged length can hide tables, while the write-ahead log, which
is newer, still says up to where everything is stored.
Source: https://github.com/facebook/rocksdb/wiki/Write-Ahead-Log-File-Format
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

import google_crc32c

from delayservice.errors import StoreError

if TYPE_CHECKING:
    from pathlib import Path

_BLOCK_BYTES: Final = 32 << 10
_HEAD: Final = Struct("<IHB")
_MASK_DELTA: Final = 0xA282EAD8
_U32: Final = 0xFFFFFFFF


def check_manifest(database: Path) -> None:
    """Make sure that the MANIFEST in use ends where it seems to; all else RocksDB checks itself.

    Raises:
        StoreError: a length in it is damaged.
        OSError: it is missing.
    """
    current = database / "CURRENT"
    if not current.exists():
        return  # a new database, or one that RocksDB refuses
    path = database / current.read_text("ascii", "replace").strip()
    data = path.read_bytes()
    at = 0
    while at + _HEAD.size <= len(data):
        block_left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if block_left < _HEAD.size:
            at += block_left
            continue
        crc, length, kind = _HEAD.unpack_from(data, at)
        content = data[at + _HEAD.size : at + block_left]
        if length > len(content) or (kind == 0 and length == 0):
            _check_cut(path, crc, kind, content)
            return
        at += _HEAD.size + length


def _check_cut(path: Path, crc: int, kind: int, content: bytes) -> None:
    """A record that was cut off has no end; one with a damaged length has."""
    found = google_crc32c.value(bytes([kind]))
    for number in range(len(content) + 1):
        if _masked(found) == crc:
            raise StoreError(f"{path} is damaged: the length of a record is wrong")
        found = google_crc32c.extend(found, content[number : number + 1])


def _masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & _U32
