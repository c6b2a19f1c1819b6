from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

from delay_devtools.bench.figures import Figures
from delay_devtools.shown import show_lateness, show_numbers
from delayservice.commands.console import out, print_json

_DIGITS: Final = 3
# Inclusive upper bounds of the histogram's ranges of lateness, in ms: three to a decade.
_BOUNDS_MS: Final = (
    *(-1, 0),
    *(step * 10**power for power in range(7) for step in (1, 2, 5)),
)


def show(figures: Figures, lateness_ms: Mapping[int, int], *, as_json: bool) -> None:
    found = {
        name: round(value, _DIGITS) if isinstance(value, float) else value
        for name, value in asdict(figures).items()
    }
    if as_json:
        print_json(found)
        return
    show_numbers(out, f"{found['bench']}, {found['delivery']}", found)
    if lateness_ms:
        bars = [
            (label, [(count, "red" if label == "early" else "green")])
            for label, count in buckets(lateness_ms)
        ]
        show_lateness(out, bars)


def buckets(lateness_ms: Mapping[int, int]) -> list[tuple[str, int]]:
    counts = [0] * (len(_BOUNDS_MS) + 1)
    for late, count in lateness_ms.items():
        counts[bisect_left(_BOUNDS_MS, late)] += count
    labels = ["early", *(f"≤ {bound:,} ms" for bound in _BOUNDS_MS[1:]), "later"]
    filled = [index for index, count in enumerate(counts) if count]
    if not filled:
        return []
    return list(zip(labels, counts, strict=True))[filled[0] : filled[-1] + 1]
