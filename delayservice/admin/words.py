"""Words and figures of the web page, as filters of its templates.

Records may come from untrusted producers. Jinja escapes their markup. Control, direction and
invisible characters, which would change how the surrounding text looks, are shown as code points
(``U+200B``).
"""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, datetime
from itertools import groupby
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from delayservice import __version__
from delayservice.inspection.query import Content

NO_FIGURE: Final = "\N{EN DASH}"
VALUE_CHARS_MAX: Final = 16_384
_CELL_CHARS_MAX: Final = 200
_YEAR_10000_MS: Final = 253_402_300_800_000
# Unicode categories of characters that are invisible or change the direction of text.
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# More than three combining marks on one letter: they would cover other lines.
_STACK: Final = re.compile(
    r"([\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u20d0-\u20ff]{3})"
    r"[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u20d0-\u20ff]+"
)
_STEPS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def count(number: int) -> str:
    return f"{number:,}"


def lateness(ms: int | None) -> str:
    """Return a duration of ``ms`` milliseconds as text with its unit; a dash for None."""
    if ms is None:
        return NO_FIGURE
    if ms < 1_000:  # noqa: PLR2004  # a second
        return f"{ms:,} ms"
    return f"{ms / 1_000:,.1f} s" if ms < 60_000 else span(ms)  # noqa: PLR2004  # a minute


def span(ms: int) -> str:
    """Return ``ms`` milliseconds, without the sign, as text in one or two units: ``2 h 5 min``."""
    left_s = abs(ms) // 1_000 * 1_000
    parts = []
    for size, unit in _STEPS:
        if left_s >= size:
            parts.append(f"{left_s // size:,} {unit}")
            left_s %= size
        elif parts:
            break  # `1 d 3 s` says no more than `1 d`
        if len(parts) == 2:  # noqa: PLR2004  # the two
            break
    return " ".join(parts) or "0 s"


def size(octets: int | None) -> str:
    if octets is None:
        return "null"
    if octets < 1_024:  # noqa: PLR2004  # a kibibyte
        return f"{octets:,} B"
    return f"{octets / 1_024:,.1f} KiB" if octets < 1 << 20 else f"{octets / (1 << 20):,.1f} MiB"


def utc(ms: int) -> str:
    """Return epoch ms as UTC text (``2026-11-21 18:37:42.123``); before 1970 or after 9999 as a
    number of ms.
    """
    if not 0 <= ms < _YEAR_10000_MS:
        return f"{ms:,} ms"
    moment = datetime.fromtimestamp(ms / 1_000, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{ms % 1_000:03}"


def moment(ms: int, form: str = "full") -> Markup:
    """Return a point in time as HTML, in UTC; the page's script converts it to local time. ``form``
    is ``full``; ``clock``, the time of day; or ``minute``, that without seconds.
    """
    text = utc(ms)
    whole = f"{text} UTC = {ms} ms"
    cut = {"full": f"{text} UTC", "clock": text[11:19], "minute": text[11:16]}[form]
    return Markup('<time data-ms="{}" data-form="{}" title="{}">{}</time>').format(
        ms, form, whole, cut
    )


def relative(ms: int, now_ms: int) -> Markup:
    """Return the time from ``now_ms`` to ``ms``, both epoch milliseconds, as HTML: ``in 5 min`` or
    ``5 min ago``. The page's script keeps the text current.
    """
    words = f"in {span(ms - now_ms)}" if ms >= now_ms else f"{span(now_ms - ms)} ago"
    return Markup('<time data-ms="{}" data-form="relative" title="{} UTC">{}</time>').format(
        ms, utc(ms), words
    )


def visible(text: str, chars_max: int = _CELL_CHARS_MAX, keep: str = "") -> Markup:
    """Return text of unknown origin as safe HTML. Control, direction and invisible characters are
    shown as code points, except those in ``keep``, and a long text is cut.
    """
    cut = _STACK.sub(r"\1", text[:chars_max])
    runs = groupby(cut, key=lambda char: char in keep or unicodedata.category(char) not in _UNSEEN)
    seen = Markup("").join(
        "".join(run) if is_seen else Markup("").join(map(_code_point, run)) for is_seen, run in runs
    )
    more = len(text) - chars_max
    rest = Markup('<span class="more">… {:,} more characters</span>').format(more)
    return Markup("<bdi>{}</bdi>{}").format(seen, rest if more > 0 else "")


def _code_point(char: str) -> Markup:
    name = unicodedata.name(char, "control character").lower()
    return Markup('<span class="code-point" title="{}">U+{:04X}</span>').format(name, ord(char))


def content(data: bytes | None, chars_max: int = _CELL_CHARS_MAX, keep: str = "") -> Markup:
    """Return content as HTML: text, base64 with a label, ``empty``, or ``null`` for None."""
    found = Content.of(data)
    if found is None:
        return Markup('<span class="none">null</span>')
    if found.data == "":
        return Markup('<span class="none">empty</span>')
    if found.encoding == "base64":
        label = Markup('<span class="tag">base64</span> ')
        return label + visible(found.data, chars_max)
    return visible(found.data, chars_max, keep)


def is_plain(text: str) -> bool:
    # Only such a text is safe to paste into a shell.
    return not any(unicodedata.category(char) in _UNSEEN for char in text)


def environment() -> Environment:
    """Return the Jinja environment: it escapes all values, and fails on unknown variables."""
    made = Environment(
        loader=PackageLoader("delayservice.admin"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for word in (count, lateness, span, size, moment, relative, visible, content):
        made.filters[word.__name__] = word
    made.filters["raw"] = Content.of
    made.tests["plain"] = is_plain
    made.globals.update(value_chars_max=VALUE_CHARS_MAX, version=__version__)
    return made
