"""Records of a load, which the judge process recognises by value and key.

A value is ``HEAD`` (24 bytes: number u64, due time in epoch milliseconds u64, tag of the load) and
random bytes up to the size of the ``Batch``; the key follows from the number. So the judge process
needs only the ``Batch``, not the service's headers.
"""

from __future__ import annotations

import random
import struct
from typing import Final

import msgspec

HEAD: Final = struct.Struct(">QQ8s")
SIZE_MIN: Final = HEAD.size
assert SIZE_MIN == 24  # noqa: S101, PLR2004 (the documented layout)

KEYS: Final = 1_024
"""Number of different keys, enough to spread evenly over partitions."""


class Batch(msgspec.Struct, frozen=True):
    """Description of one load, whose records have the numbers 0 to n-1.

    Attributes:
        tag: 8 ASCII characters in each value; a record with another tag counts as a stranger (not
            sent by this load).
        n: number of records.
        size: bytes of each value, ``SIZE_MIN`` at least.
        seed: seed of the filler and of the due times.
    """

    tag: str
    n: int
    size: int
    seed: int

    def tag_bytes(self) -> bytes:
        """Return the 8 bytes of the tag in each value."""
        return self.tag.encode("ascii")

    def filler(self) -> bytes:
        """Return the bytes after the head of each value: random, so that they are
        incompressible.
        """
        # Seeded, to replay.
        return random.Random(self.seed).randbytes(self.size - SIZE_MIN)  # noqa: S311


def keys() -> list[bytes]:
    """Return the keys of a load; the record ``number`` has the key at index ``number % KEYS``."""
    return [b"key-%d" % number for number in range(KEYS)]
