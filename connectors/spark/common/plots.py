"""The kinds of figure that the pages have: plain numbers in, an ``<svg>`` element out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Final

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from connectors.spark.common.html import FIGURE_INCHES, FIRST, MUTED, style, svg
from delayservice.units import DAY_MS

_BAR_INCHES = 0.28
_AXIS_INCHES = 0.9
_COLUMNS_MIN = 5
"""Room for so many columns is there, or a single one would be a wall."""
_ALONE_DAYS = 1 / 24
"""What is shown on both sides of a single instant."""
_LABEL_CHARS_MAX = 22
_LOG_RATIO = 1_000
"""A range of more than so many times its least is shown on a logarithmic scale."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line: a name, a value for each instant, and one of the colours of ``html``."""

    name: str
    values: Sequence[float]
    colour: str = FIRST
    is_filled: bool = False


def columns(
    labels: Sequence[str], values: Sequence[float], label: str, *, x: str, y: str
) -> Markup:
    """Values of classes that have an order, such as a histogram; ``x`` names the classes."""
    with style():
        figure, axes = _axes(FIGURE_INCHES)
        axes.bar(range(len(labels)), values, color=FIRST, width=0.85)
        axes.set_xlim(-0.6, max(len(labels), _COLUMNS_MIN) - 0.4)
        axes.set_xticks(range(len(labels)), labels, rotation=90 if len(labels) > 6 else 0)  # noqa: PLR2004
        axes.grid(visible=False, axis="x")
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        _scale(axes, values)
        if not labels:
            _empty(figure, axes)
        return svg(figure, label)


def bars(
    labels: Sequence[str], counts: Sequence[int], label: str, *, colour: str = FIRST
) -> Markup:
    """Counts of named things, the first one on top."""
    with style():
        figure, axes = _axes((FIGURE_INCHES[0], _AXIS_INCHES + _BAR_INCHES * max(len(labels), 1)))
        axes.barh(range(len(labels)), counts, color=colour, height=0.7)
        axes.set_yticks(range(len(labels)), [_shortened(text) for text in labels])
        axes.set_ylim(max(len(labels), 1) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_formatter(_NUMBERS)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set_xlim(left=0)
        axes.set_xlabel("records")
        if not labels:
            _empty(figure, axes)
        return svg(figure, label)


def lines(times_ms: Sequence[int], series: Sequence[Series], label: str, *, y: str) -> Markup:
    """Values over time, epoch milliseconds, shown in UTC; ``y`` names them with their unit."""
    days = [time_ms / DAY_MS for time_ms in times_ms]  # matplotlib's dates, since its epoch 1970
    with style():
        figure, axes = _axes(FIGURE_INCHES)
        for one in series:
            mark = "o" if len(times_ms) == 1 else ""
            axes.plot(days, one.values, marker=mark, label=one.name, color=one.colour)
            if one.is_filled:
                axes.fill_between(days, list(one.values), color=one.colour, alpha=0.25, linewidth=0)
        _time_axis(axes, days)
        axes.set_xlabel("UTC")
        axes.set_ylabel(y)
        _scale(axes, [value for one in series for value in one.values])
        if len(series) > 1 and times_ms:
            axes.legend(loc="upper left", ncols=len(series), bbox_to_anchor=(0, 1.15))
        if not times_ms:
            _empty(figure, axes)
        return svg(figure, label)


def _short(value: float, _: object = None) -> str:
    """A number of an axis: 950, 1.5k, 20M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


_NUMBERS: Final = FuncFormatter(_short)


def _empty(figure: Figure, axes: Axes) -> None:
    """Draw an empty figure: a word instead of an axis."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, "nothing", ha="center", va="center", transform=axes.transAxes, color=MUTED)
    figure.set_size_inches(FIGURE_INCHES[0], _AXIS_INCHES)


def _axes(inches: tuple[float, float]) -> tuple[Figure, Axes]:
    figure = Figure(figsize=inches, layout="constrained")
    return figure, figure.add_subplot()


def _time_axis(axes: Axes, days: Sequence[float]) -> None:
    if len(days) == 1:
        axes.set_xlim(days[0] - _ALONE_DAYS, days[0] + _ALONE_DAYS)
    locator = AutoDateLocator(tz=UTC, minticks=3, maxticks=7)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]


def _scale(axes: Axes, values: Sequence[float]) -> None:
    """From zero; with small and very large values beside each other, by powers of ten."""
    above = [value for value in values if value > 0]
    if above and max(above) / min(above) > _LOG_RATIO:
        axes.set_yscale("symlog", linthresh=1)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(_NUMBERS)
    axes.set_ylim(bottom=0)


def _shortened(text: str) -> str:
    """A name that leaves room for the figure; its table has it whole."""
    if len(text) <= _LABEL_CHARS_MAX:
        return text
    half = _LABEL_CHARS_MAX // 2
    return f"{text[: half - 1]}…{text[-half:]}"
