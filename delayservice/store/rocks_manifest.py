"""Check that the MANIFEST and write-ahead logs of a RocksDB database are whole, which RocksDB omits
when it opens one.

The MANIFEST lists the valid tables. It is a log of records in blocks of 32 KiB::

    crc u32, length u16, type u8        little endian; crc32c of type and content, masked
    content                             length bytes

If a record reaches beyond the end of the file, RocksDB assumes that a crash cut it off, and ignores
everything from there on. So a damaged length can hide tables, while the newer write-ahead log still
contains the horizon. RocksDB also accepts a MANIFEST that was cut between two records, and a
missing write-ahead log if a newer one exists. So each batch of this service writes a row that
states which files must exist at that time: see ``Witness``. Source:
https://github.com/facebook/rocksdb/wiki/Write-Ahead-Log-File-Format and, for the content,
``VersionEdit::EncodeTo`` in https://github.com/facebook/rocksdb/blob/main/db/version_edit.cc
"""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import google_crc32c

from delayservice.base.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocksdict import Rdict, WriteBatch

_BLOCK_BYTES: Final = 32 << 10
_HEAD: Final = Struct("<IHB")
_MASK_DELTA: Final = 0xA282EAD8
_U32: Final = 0xFFFFFFFF
# Types of a record of the MANIFEST: a whole one, and the first and last part of a divided one.
_FULL, _FIRST, _LAST = 1, 2, 4
# Tags of the fields with which a record of the MANIFEST begins: two texts (comparator, database
# id), and the number of the oldest log that is still needed.
_COMPARATOR, _LOG_NUMBER, _DATABASE_ID = 1, 2, 8193
# Row key of ``ManifestGuard``: number 0, which no shard has, and ``w``.
_ROW: Final = b"\0\0\0\0w"
_MORE: Final = 0x80
_WITNESSED: Final = Struct(">QQQ")


class Manifest(NamedTuple):
    """State of a database's files before it is opened: number and size of the MANIFEST, number of
    the oldest write-ahead log that is needed (older ones are in tables), and the existing logs.
    """

    number: int
    size: int
    log_number: int
    logs: frozenset[int]


def read_manifest(database: Path) -> Manifest | None:
    """Read the MANIFEST that is in use, check that it is whole, and return what it and the existing
    write-ahead logs state; None: there is no file CURRENT, so the database is new, or RocksDB will
    refuse it. Checksums are checked too, because RocksDB 9.8 hangs at a record whose type was
    changed to 5.

    Raises:
        StoreError: the MANIFEST is damaged.
        OSError: the MANIFEST is missing.
    """
    if not (database / "CURRENT").exists():
        return None
    path = _manifest_of(database)
    data = path.read_bytes()
    log_number, edit = 0, b""
    for kind, content in _parts(path, data):
        edit = content if kind in {_FULL, _FIRST} else edit + content
        if kind in {_FULL, _LAST}:
            log_number = max(log_number, _log_number(edit))
    logs = frozenset(int(log.stem) for log in database.glob("*.log"))
    return Manifest(_number_of(path), len(data), log_number, logs)


def _manifest_of(database: Path) -> Path:
    return database / (database / "CURRENT").read_text("ascii", "replace").strip()


def _number_of(manifest: Path) -> int:
    number = manifest.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def _parts(path: Path, data: bytes) -> Iterator[tuple[int, bytes]]:
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
        if (
            _masked(google_crc32c.extend(google_crc32c.value(bytes([kind])), content[:length]))
            != crc
        ):
            raise StoreError(f"{path} is damaged: the checksum of a record is wrong")
        yield kind, content[:length]
        at += _HEAD.size + length


def _check_cut(path: Path, crc: int, kind: int, content: bytes) -> None:
    # The length in the last record's header is wrong. If its checksum fits a part of the rest of
    # the block, the length is damaged; otherwise a crash cut the record off.
    found = google_crc32c.value(bytes([kind]))
    for number in range(len(content) + 1):
        if _masked(found) == crc:
            raise StoreError(f"{path} is damaged: the length of a record is wrong")
        found = google_crc32c.extend(found, content[number : number + 1])


def _masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & _U32


def _log_number(edit: bytes) -> int:
    # 0: the record does not mention logs.
    at = 0
    while at < len(edit):
        tag, at = _varint(edit, at)
        if tag not in {_COMPARATOR, _LOG_NUMBER, _DATABASE_ID}:
            return 0
        value, at = _varint(edit, at)
        if tag == _LOG_NUMBER:
            return value
        at += value  # the length of a text
    return 0


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the integer that begins at index ``at``, encoded with seven bits per byte, and the
    index of the byte after it.
    """
    value = shift = 0
    while at < len(data):
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & _MORE:
            break
    return value, at


class Witness:
    """Writer of a row that each batch of a database contains, and that states the files at that
    time: number and size of the MANIFEST, and number of the oldest write-ahead log that was needed.

    By this row, the loss of a table or a log is detected when the database is opened, if a batch
    was written after the MANIFEST listed the file. The loss is missed only after a crash between
    the end of a flush and the next batch.
    """

    def __init__(self, path: Path, database: Rdict) -> None:
        self._path = path
        self._database = database
        self._size = -1
        self._row = b""
        self._find_manifest()

    def _find_manifest(self) -> None:
        manifest = _manifest_of(self._path)
        self._manifest, self._number = str(manifest), _number_of(manifest)

    def sign(self, batch: WriteBatch) -> None:
        try:
            size = os.stat(self._manifest).st_size  # noqa: PTH116 - for each batch
        except FileNotFoundError:  # it was full, and there is a new one
            self._find_manifest()
            size = os.stat(self._manifest).st_size  # noqa: PTH116
        if size != self._size:
            self._size = size
            # What is needed of the logs changes with the MANIFEST only.
            needed = self._database.property_int_value("rocksdb.min-log-number-to-keep") or 0
            logs = [int(log.stem) for log in self._path.glob("*.log")]
            oldest = min([log for log in logs if log >= needed], default=0)
            self._row = _WITNESSED.pack(self._number, size, oldest)
        batch.put(_ROW, self._row)


def check_witness(database: Rdict, found: Manifest | None) -> None:
    """Compare the row of ``ManifestGuard`` in an open database with the files found before it was
    opened. A database without this row passes.

    Raises:
        OSError: the end of the MANIFEST or a needed write-ahead log is missing.
    """
    row = database.get(_ROW)
    if row is None or found is None:
        return
    number, size, oldest_log = _WITNESSED.unpack(row)
    if found.number < number or (found.number == number and found.size < size):
        raise OSError(f"MANIFEST-{found.number:06d} has lost its end, or a newer one is lost")
    if oldest_log not in {0, *found.logs} and oldest_log >= found.log_number:
        raise OSError(f"the write-ahead log {oldest_log:06d} is lost, and there is a newer one")
