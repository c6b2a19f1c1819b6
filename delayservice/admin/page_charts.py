"""Coordinates of the charts, which the templates draw as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Final

from delayservice.admin.history import Sample
from delayservice.admin.models import Timeline

HEIGHT: Final = 100
WIDTH: Final = 300
_POINTS_MAX: Final = 300
_TICKS: Final = 5
_MINUTE_MS: Final = 60_000
_DECADES_MIN: Final = 2
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


@dataclass(frozen=True, slots=True)
class Point:
    """Samples that a chart shows as one: records per second, and the lateness in ms; None: no
    record was delivered.
    """

    at_ms: int
    ingested: float
    delivered: float
    lateness_ms_p50: int | None
    lateness_ms_p99: int | None


@dataclass(frozen=True, slots=True)
class Past:
    """Line charts of throughput and lateness in the last minutes, as SVG points."""

    minutes: int
    # Time at the right edge, epoch milliseconds.
    now_ms: int
    # Rate at the upper edge, in records per second.
    rates_top: int
    delivered: list[str]
    ingested: list[str]
    # Length of the logarithmic axis of lateness from 1 ms up, in powers of ten.
    decades: int
    p50: list[str]
    p99: list[str]
    # One point for each minute, newest first.
    rows: list[Point]
    # Point of the newest minute; None: there are no samples of it.
    last_minute: Point | None

    @property
    def start_ms(self) -> int:
        return self.now_ms - self.minutes * _MINUTE_MS


def past_of(samples: Sequence[Sample], minutes: int, now_ms: int) -> Past:
    start_ms = now_ms - minutes * _MINUTE_MS
    seen = [sample for sample in samples if sample.at_ms >= start_ms]
    step_ms = max(minutes * _MINUTE_MS // _POINTS_MAX, 1_000)
    points = _together(seen, step_ms)
    rates_top = round_up(max((max(p.ingested, p.delivered) for p in points), default=1))
    worst_ms = max((p.lateness_ms_p99 or 1 for p in points), default=1)
    decades = max(math.ceil(math.log10(max(worst_ms, 1))), _DECADES_MIN)

    def x_of(at_ms: int) -> float:
        return (at_ms - start_ms) / (now_ms - start_ms) * WIDTH

    def rate_y(rate: float) -> float:
        return HEIGHT - rate / rates_top * HEIGHT

    def late_y(late_ms: int) -> float:
        return HEIGHT - math.log10(max(late_ms, 1)) / decades * HEIGHT

    def lines(found: Iterable[tuple[int, float | None]]) -> list[str]:
        return _lines([(x_of(at_ms), y) for at_ms, y in found], step_ms / (now_ms - start_ms))

    def late(found_ms: int | None) -> float | None:
        return None if found_ms is None else late_y(found_ms)

    return Past(
        minutes=minutes,
        now_ms=now_ms,
        rates_top=rates_top,
        delivered=lines((p.at_ms, rate_y(p.delivered)) for p in points),
        ingested=lines((p.at_ms, rate_y(p.ingested)) for p in points),
        decades=decades,
        p50=lines((p.at_ms, late(p.lateness_ms_p50)) for p in points),
        p99=lines((p.at_ms, late(p.lateness_ms_p99)) for p in points),
        rows=_together(seen, _MINUTE_MS)[::-1],
        last_minute=_point(now_ms, [s for s in seen if s.at_ms >= now_ms - _MINUTE_MS]),
    )


def _together(samples: Sequence[Sample], step_ms: int) -> list[Point]:
    # Steps begin at multiples of ``step_ms`` of the clock, so that old points don't change when the
    # chart moves on.
    steps = groupby(samples, key=lambda sample: sample.at_ms // step_ms)
    points = (_point(step * step_ms, list(found)) for step, found in steps)
    return [point for point in points if point is not None]


def _point(at_ms: int, samples: Sequence[Sample]) -> Point | None:
    # Mean rates, median of medians, largest 99th percentile.
    seconds = sum(sample.seconds for sample in samples)
    if not seconds:
        return None
    p50 = [s.lateness_ms_p50 for s in samples if s.lateness_ms_p50 is not None]
    p99 = [s.lateness_ms_p99 for s in samples if s.lateness_ms_p99 is not None]
    return Point(
        at_ms=at_ms,
        ingested=sum(sample.ingested for sample in samples) / seconds,
        delivered=sum(sample.delivered for sample in samples) / seconds,
        lateness_ms_p50=round(median(p50)) if p50 else None,
        lateness_ms_p99=max(p99, default=None),
    )


def _lines(found: Iterable[tuple[float, float | None]], step: float) -> list[str]:
    # SVG polylines, interrupted where y is None or points are missing; a single point becomes a
    # short line. ``step``: distance of points as a share of the width.
    lines: list[list[tuple[float, float]]] = [[]]
    last_x = -math.inf
    for x, y in found:
        if (y is None or x - last_x > 4 * step * WIDTH) and lines[-1]:
            lines.append([])
        if y is not None:
            lines[-1].append((x, y))
        last_x = x
    ended = (
        line if len(line) > 1 else [*line, (line[0][0] + 0.5, line[0][1])] for line in lines if line
    )
    return [" ".join(f"{x:.1f},{y:.1f}" for x, y in line) for line in ended]
