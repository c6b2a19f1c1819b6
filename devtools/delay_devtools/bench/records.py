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


class Batch(msgspec.Struct, frozen=True):
    """Description of one load, whose records have the numbers 0 to n-1.

    A record with another ``tag`` (8 ASCII characters) counts as a stranger. ``seed`` is for filler
    and due times.
    """

    tag: str
    n: int
    size: int
    seed: int

    def tag_bytes(self) -> bytes:
        return self.tag.encode("ascii")

    def filler(self) -> bytes:
        # Random, so that values are incompressible.
        # Seeded, to replay.
        return random.Random(self.seed).randbytes(self.size - SIZE_MIN)  # noqa: S311


def keys() -> list[bytes]:
    return [b"key-%d" % number for number in range(KEYS)]
