"""Even spreading over a span of time, by a pure function of the offset, to avoid peaks of load.

Every node must compute the same key for a record (design rule 2), so the function never changes.
"""

from __future__ import annotations

from typing import Final

# 2**32 divided by the golden ratio: neighbouring offsets land far apart (Knuth, volume 3, 6.4).
_FACTOR: Final = 2_654_435_761
_BITS: Final = 32
_MASK: Final = (1 << _BITS) - 1


def spread_ms(offset: int, span_ms: int) -> int:
    """Return 0 to ``span_ms``, both included, evenly spread over source offsets."""
    return ((offset * _FACTOR & _MASK) * (span_ms + 1)) >> _BITS
