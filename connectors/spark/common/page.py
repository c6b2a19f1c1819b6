"""Writes reports as one HTML file without scripts or network access: facts, tables and bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Final, TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined

# Size of a chart in its own units; the page scales it.
WIDTH: Final = 800
HEIGHT: Final = 160

Row: TypeAlias = Sequence[object]


@dataclass(frozen=True, slots=True)
class Table:
    """Numbers are right-aligned, None is a dash; ``note`` tells what was left out."""

    caption: str
    columns: tuple[str, ...]
    rows: Sequence[Row]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars over time, one for each series at each of ``times_ms`` (epoch ms, ascending, ``step_ms``
    apart or more), drawn over each other: name the highest series first, three at most. A table
    beside them holds the numbers.
    """

    caption: str
    times_ms: Sequence[int]
    step_ms: int
    series: Mapping[str, Sequence[float]]

    @property
    def top(self) -> float:
        return max((value for values in self.series.values() for value in values), default=0.0)

    @property
    def width(self) -> float:
        """Width of a bar."""
        steps = (self.times_ms[-1] - self.times_ms[0]) // self.step_ms + 1
        return WIDTH / steps

    def path(self, name: str) -> str:
        """Return the bars of a series as an SVG path of vertical lines from the bottom."""
        bars = zip(self.times_ms, self.series[name], strict=True)
        return " ".join(
            f"M{((time_ms - self.times_ms[0]) / self.step_ms + 0.5) * self.width:.1f} {HEIGHT}"
            f"v{-HEIGHT * value / self.top:.1f}"
            for time_ms, value in bars
            if value > 0
        )


@dataclass(frozen=True, slots=True)
class PageSection:
    heading: str
    tables: Sequence[Table]
    lead: str = ""
    bars: Bars | None = None


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
    template = _environment().get_template("page.html")
    return template.render(page=page, width=WIDTH, height=HEIGHT)


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
    environment.filters |= {"number": number, "moment": moment}
    environment.tests["numeric"] = lambda value: isinstance(value, int | float)
    return environment
