"""The building blocks of a page: one HTML file that needs neither a network nor a script.

Colours are those of the reader's device, light or dark. So figures are drawn with placeholders that
become the page's CSS variables, and a figure's text stays text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from io import StringIO
from types import MappingProxyType
from typing import Any, Final
from zlib import crc32

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure

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
"""Placeholder of a colour to the CSS variable of ``templates/base.html`` that stands for it."""

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

FIGURE_INCHES: Final = (4.7, 2.9)
"""About the width of a phone, so that text has its own size there and is larger elsewhere."""

_ANCHOR: Final = re.compile(r'(\bid="|url\(#|href="#)')
_ROOT: Final = re.compile(r'.*?<svg[^>]*?(viewBox="[^"]*")[^>]*>.*?</metadata>', re.DOTALL)


def style() -> AbstractContextManager[None]:
    """Style within which every figure is drawn."""
    return rc_context(_STYLE)


@dataclass(frozen=True, slots=True)
class Table:
    """A table. Numbers stand right, with separators; None is a dash.

    ``note``: what the table does not show, such as how many rows were left out.
    """

    caption: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[object]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure with its sentence, and the same facts as a table for readers who can't see it."""

    caption: str
    image: Markup
    table: Table


def render(template: str, **facts: object) -> str:
    """The page that ``templates/<template>`` makes of the facts; everything in them is escaped.

    Raises:
        jinja2.TemplateError: there is no such template, or it asks for a fact that is not given.
    """
    return _environment().get_template(template).render(**facts)


def svg(figure: Figure, label: str) -> Markup:
    """A figure as an ``<svg>`` element for one page.

    Args:
        figure: drawn within ``style``, with the colours of this module.
        label: what it shows, for readers that hear it.
    """
    written = StringIO()
    with style():
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    text = written.getvalue()
    root = _ROOT.match(text)
    if root is None:
        raise AssertionError("matplotlib wrote no svg element")  # its format, not a user's input
    body = text[root.end() :]
    for colour, name in _VARIABLES.items():
        body = body.replace(colour, f"var(--{name})")
    # Ids are of the page, and a page has several figures.
    body = _ANCHOR.sub(rf"\g<1>f{crc32(label.encode()):x}-", body)
    head = Markup('<svg role="img" {} aria-label="{}">')
    return head.format(Markup(root[1]), label) + Markup(body)  # noqa: S704  # matplotlib escapes


def number(value: object) -> str:
    """A cell's text: whole numbers with separators, others with three digits, None as a dash."""
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
    """An instant for people, in UTC to the minute."""
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
    environment.filters["moment"] = moment
    environment.tests["numeric"] = lambda value: isinstance(value, int | float)
    return environment
