"""The partition a Java producer would choose for a key.

Source: ``murmur2`` and ``toPositive`` of ``org.apache.kafka.common.utils.Utils``, and librdkafka's
``murmur2`` partitioner, which deliveries use; this is for ids.
"""

from __future__ import annotations

from typing import Final

from murmurhash2 import murmurhash2

_SEED: Final = 0x9747B28C
_MASK31: Final = 0x7FFFFFFF


def murmur2(data: bytes) -> int:
    """Return the 32-bit hash, unsigned (Java's ``int`` is the same bits, signed)."""
    return murmurhash2(data, _SEED)


def partition_for(key: bytes, partitions: int) -> int:
    """Return the partition of ``key`` among ``partitions``, 1 or more.

    Raises:
        ZeroDivisionError: ``partitions`` is 0.
    """
    return (murmurhash2(key, _SEED) & _MASK31) % partitions
