"""Computes the size of a record batch (version 2), which ``max.message.bytes`` limits.

Source: KIP-98 and ``org.apache.kafka.common.record.DefaultRecord``. Lengths are zigzag varints.
"""

from __future__ import annotations

from typing import Final

from delayservice.contract.entry import Headers

_HEADER_BYTES: Final = 61
_FIXED_BYTES: Final = 3
"""Bytes of attributes, timestamp delta and offset delta of the first record of a batch."""


def batch_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return the size of a batch that holds this record alone, uncompressed, in bytes."""
    body = _FIXED_BYTES + _field(key) + _field(value) + _varint(len(headers))
    for name, text in headers:
        body += _field(name.encode()) + _field(text)
    return _HEADER_BYTES + _varint(body) + body


def _field(content: bytes | None) -> int:
    """Return the size in bytes of a key, header name or value with the varint of its length; None:
    only the varint.
    """
    return 1 if content is None else _varint(len(content)) + len(content)


def _varint(number: int) -> int:
    """Return the size in bytes of a number of 0 or more as a zigzag varint."""
    return max(((number << 1).bit_length() + 6) // 7, 1)
