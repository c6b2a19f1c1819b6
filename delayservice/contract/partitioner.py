"""Partition that a Java producer chooses for a key. The service chooses the home of an id likewise.

Source: ``murmur2`` and ``toPositive`` of ``org.apache.kafka.common.utils.Utils``. Deliveries use
librdkafka's ``murmur2`` partitioner, which chooses the same.
"""

from __future__ import annotations

from typing import Final

from murmurhash2 import murmurhash2

_SEED: Final = 0x9747B28C
_MASK31: Final = 0x7FFFFFFF


def murmur2(data: bytes) -> int:
    """Return the 32-bit murmur2 hash, unsigned (Java's ``int`` has the same bits)."""
    return murmurhash2(data, _SEED)


def partition_for(key: bytes, partitions: int) -> int:
    """Return the partition, 0 to ``partitions`` - 1, that a Java producer chooses for ``key``."""
    return (murmurhash2(key, _SEED) & _MASK31) % partitions
