"""Writes reports as one HTML file without scripts or network access: facts, tables and charts.

Charts are drawn with placeholder colours, which are replaced by CSS variables: the colours follow
the setting of the reader's device, light or dark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from io import StringIO
from types import MappingProxyType
from typing import Any, Final, TypeAlias
from zlib import crc32

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from delayservice.config.units import DAY_MS

INK: Final = "#0a0b01"
MUTED: Final = "#0a0b02"
LINE: Final = "#0a0b03"
FIRST: Final = "#0a0b04"
SECOND: Final = "#0a0b05"
THIRD: Final = "#0a0b06"
BAD: Final = "#0a0b07"

_VARIABLES: Final = MappingProxyType(
    {
        INK: "ink",
        MUTED: "muted",
        LINE: "line",
        FIRST: "first",
        SECOND: "second",
        THIRD: "third",
        BAD: "bad",
    }
)

_STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "delayservice",
    "lines.linewidth": 1.4,
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
}
# Width of a chart, in inches: about that of a phone, on which chart text then has its normal size.
_WIDTH_INCHES: Final = 4.7
_LINES_INCHES: Final = 2.9
_ROW_INCHES: Final = 0.28
_AXIS_INCHES: Final = 0.9
_LABEL_CHARS_MAX: Final = 26
# Ratio of the largest to the smallest value of a chart above which its scale is logarithmic.
_LOG_RATIO: Final = 1_000
_ANCHOR: Final = re.compile(r'(\bid="|url\(#|href="#)')
_ROOT: Final = re.compile(r'.*?<svg[^>]*?(viewBox="[^"]*")[^>]*>.*?</metadata>', re.DOTALL)

Draw: TypeAlias = Callable[[Axes], None]
Row: TypeAlias = Sequence[object]


@dataclass(frozen=True, slots=True)
class Table:
    """Numbers are right-aligned, None is a dash; ``note`` tells what was left out."""

    caption: str
    columns: tuple[str, ...]
    rows: Sequence[Row]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """Figure, and the table of its data for readers who can't see it; ``inches``: its height."""

    table: Table
    draw: Draw
    inches: float

    @property
    def image(self) -> Markup:
        with rc_context(_STYLE):
            height = self.inches if self.table.rows else _AXIS_INCHES
            figure = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
            (self.draw if self.table.rows else _nothing)(figure.add_subplot())
            return _svg(figure, self.table.caption)


@dataclass(frozen=True, slots=True)
class PageSection:
    heading: str
    lead: str = ""
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()


@dataclass(frozen=True, slots=True)
class HtmlPage:
    """Content of a page. ``lead`` is the sentence below the heading, ``warnings`` are sentences
    that must not be overlooked, ``notes`` tell what is not included.
    """

    title: str
    heading: str
    lead: str
    facts: Sequence[tuple[str, object]]
    sections: Sequence[PageSection]
    footer: str
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()


def write_page(page: HtmlPage) -> str:
    """Return the page as HTML text; all texts are escaped."""
    return _environment().get_template("page.html").render(page=page)


def bars(
    caption: str,
    columns: tuple[str, ...],
    rows: Sequence[Row],
    *,
    value: int = 1,
    colour: str = FIRST,
    note: str = "",
) -> Chart:
    """Return a chart with a horizontal bar for each row, the first row on top."""
    values: list[Any] = [row[value] or 0 for row in rows]

    def draw(axes: Axes) -> None:
        axes.barh(range(len(rows)), values, color=colour, height=0.7)
        axes.set_yticks(range(len(rows)), [_shortened(str(row[0])) for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(columns[value])
        _scale(axes, "x", values)

    height = _AXIS_INCHES + _ROW_INCHES * len(rows)
    return Chart(Table(caption, columns, rows, note), draw, height)


def lines(
    table: Table, times_ms: Sequence[int], series: Mapping[str, Sequence[float]], y: str
) -> Chart:
    """Return a chart of up to three lines over ``times_ms`` (epoch ms)."""
    days = [time_ms / DAY_MS for time_ms in times_ms]  # matplotlib's dates, since its epoch 1970

    def draw(axes: Axes) -> None:
        for (name, values), colour in zip(series.items(), (FIRST, SECOND, THIRD), strict=False):
            axes.plot(days, values, "o-" if len(days) == 1 else "-", label=name, color=colour)
        locator = AutoDateLocator(tz=UTC, minticks=3, maxticks=7)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
        axes.set_xlabel("UTC")
        axes.set_ylabel(y)
        axes.legend(loc="upper left", ncols=len(series), bbox_to_anchor=(0, 1.15))
        _scale(axes, "y", [value for values in series.values() for value in values])

    return Chart(table, draw, _LINES_INCHES)


def _scale(axes: Axes, name: str, values: Sequence[Any]) -> None:
    axis = axes.xaxis if name == "x" else axes.yaxis
    above = [value for value in values if value > 0]
    if above and max(above) / min(above) > _LOG_RATIO:
        getattr(axes, f"set_{name}scale")("symlog", linthresh=1)
    else:
        axis.set_major_locator(MaxNLocator(5))
    axis.set_major_formatter(EngFormatter(sep=""))
    getattr(axes, f"set_{name}lim")(0, None)


def _nothing(axes: Axes) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, "nothing", ha="center", va="center", transform=axes.transAxes, color=MUTED)


def _shortened(text: str) -> str:
    half = _LABEL_CHARS_MAX // 2
    return text if len(text) <= _LABEL_CHARS_MAX else f"{text[: half - 1]}…{text[-half:]}"


def _svg(figure: Figure, label: str) -> Markup:
    written = StringIO()
    figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    text = written.getvalue()
    root = _ROOT.match(text)
    if root is None:
        raise AssertionError("matplotlib wrote no svg element")  # its format, not a user's input
    body = text[root.end() :]
    for colour, name in _VARIABLES.items():
        body = body.replace(colour, f"var(--{name})")
    # Ids must be unique in the page, which may have several figures.
    body = _ANCHOR.sub(rf"\g<1>f{crc32(label.encode()):x}-", body)
    head = Markup('<svg role="img" {} aria-label="{}">')
    return head.format(Markup(root[1]), label) + Markup(body)  # noqa: S704  # matplotlib escapes


def number(value: object) -> str:
    """Return the text of a table cell; fractions have three significant digits below 1,000."""
    if value is None:
        return "\N{EN DASH}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 1_000 else f"{value:,.0f}"  # noqa: PLR2004
    return str(value)


def moment(time_ms: int) -> str:
    """Return a time (epoch ms) as text such as ``2025-01-31 23:59``, in UTC."""
    return datetime.fromtimestamp(time_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("connectors.spark.common"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    environment.tests["numeric"] = lambda value: isinstance(value, int | float)
    return environment
