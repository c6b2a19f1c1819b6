"""The partition a Java producer would choose for a key.

Source: ``murmur2`` and ``toPositive`` of ``org.apache.kafka.common.utils.Utils``, and librdkafka's
``murmur2`` partitioner. Deliveries use librdkafka's; this is for ids and tests, not the hot path.
"""

from __future__ import annotations

import struct
from typing import Final

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_SHIFT: Final = 24
_MASK32: Final = 0xFFFFFFFF
_MASK31: Final = 0x7FFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash, unsigned (Java's ``int`` is the same bits, signed)."""
    whole = len(data) & ~3
    hashed = _SEED ^ len(data)
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        mixed = (word * _MULTIPLIER) & _MASK32
        mixed ^= mixed >> _SHIFT
        hashed = ((hashed * _MULTIPLIER) ^ (mixed * _MULTIPLIER)) & _MASK32
    rest = data[whole:]
    if rest:
        hashed = ((hashed ^ int.from_bytes(rest, "little")) * _MULTIPLIER) & _MASK32
    hashed ^= hashed >> 13
    hashed = (hashed * _MULTIPLIER) & _MASK32
    return hashed ^ (hashed >> 15)


def partition_for(key: bytes, partitions: int) -> int:
    """The partition of ``key`` among ``partitions``, 1 or more.

    Raises:
        ZeroDivisionError: ``partitions`` is 0.
    """
    return (murmur2(key) & _MASK31) % partitions
