"""Statistics of the records that arrived."""

from __future__ import annotations

from collections.abc import Sequence


def quantile(ascending: Sequence[int], fraction: float) -> int:
    """Return the smallest value with ``fraction`` of all values at or below it; 0 if empty."""
    if not ascending:
        return 0
    return ascending[max(int(len(ascending) * fraction + 0.999999) - 1, 0)]
