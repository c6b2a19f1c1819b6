"""Computes the size of a record batch (version 2), which ``max.message.bytes`` limits.

Source: KIP-98 and ``org.apache.kafka.common.record.DefaultRecord``. Lengths are zigzag varints.
"""

from __future__ import annotations

from typing import Final

from delayservice.contract.entry import Headers

_HEADER_BYTES: Final = 61
# Bytes of attributes, timestamp delta and offset delta of the first record of a batch.
_FIXED_BYTES: Final = 3


def batch_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return the size of a batch that holds this record alone, uncompressed, in bytes."""
    body = _FIXED_BYTES + _field(key) + _field(value) + _varint(len(headers))
    for name, text in headers:
        body += _field(name.encode()) + _field(text)
    return _HEADER_BYTES + _varint(body) + body


def _field(content: bytes | None) -> int:
    return 1 if content is None else _varint(len(content)) + len(content)


def _varint(number: int) -> int:
    return max(((number << 1).bit_length() + 6) // 7, 1)
