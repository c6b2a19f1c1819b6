"""Figures of what arrived."""

from __future__ import annotations

from collections.abc import Sequence


def quantile(ascending: Sequence[int], fraction: float) -> int:
    """The smallest value that this fraction of all is at or below; 0 of nothing."""
    if not ascending:
        return 0
    return ascending[max(int(len(ascending) * fraction + 0.999999) - 1, 0)]
