"""Coordinates of the chart of due times, which the template draws as SVG."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from delayservice.admin.models import Timeline

HEIGHT: Final = 100
_TICKS: Final = 5
# Possible upper ends of an axis, in tenths of a power of ten; half of each is round as well.
_STEPS: Final = (10, 12, 16, 20, 24, 30, 40, 50, 60, 80, 100)


@dataclass(frozen=True, slots=True)
class ChartBar:
    """Bar for the ``count`` records due in ``[start_ms, stop_ms)``, epoch ms. ``x``, ``y`` and
    ``height`` are in SVG units; ``y`` counts down from the upper edge.
    """

    start_ms: int
    stop_ms: int
    count: int
    x: int
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Bars:
    """Bar chart of the numbers of pending records by due time."""

    bars: list[ChartBar]
    # Number of records at the upper edge of the chart.
    top: int
    # Labelled times at even distances, left edge to right edge, epoch milliseconds.
    ticks_ms: list[int]
    total: int
    # Bar with most records; None: all are empty.
    peak: ChartBar | None

    @property
    def width(self) -> int:
        # In SVG units: ten for each bar.
        return 10 * len(self.bars)


def bars_of(timeline: Timeline) -> Bars:
    counts = [bucket.count for bucket in timeline.buckets]
    top = round_up(max(counts))
    bars = []
    for number, bucket in enumerate(timeline.buckets):
        # One record beside a million must stay visible.
        height = max(bucket.count / top * HEIGHT, 1.5) if bucket.count else 0.0
        stop_ms = bucket.start_ms + timeline.unit_ms
        y = round(HEIGHT - height, 2)
        bars.append(
            ChartBar(bucket.start_ms, stop_ms, bucket.count, 10 * number, y, round(height, 2))
        )
    first_ms, wide_ms = bars[0].start_ms, timeline.unit_ms * len(bars)
    ticks_ms = [first_ms + wide_ms * number // (_TICKS - 1) for number in range(_TICKS)]
    peak = max(bars, key=lambda bar: bar.count)
    return Bars(bars, top, ticks_ms, sum(counts), peak if peak.count else None)


def round_up(number: float) -> int:
    """Return the smallest round number that is not below ``number``, for the end of an axis."""
    if number <= 1:
        return 1
    if number <= 10:  # noqa: PLR2004  # below that, halves of even numbers are whole
        return math.ceil(number / 2) * 2
    power = int(10 ** (math.floor(math.log10(number)) - 1))
    return next(step * power for step in _STEPS if step * power >= number)
