"""Web page of a node: the data of the API, rendered as HTML on the server.

The page is complete without JavaScript. Its script loads the same HTML once a second and replaces
the changed parts, so that only the server renders.

Records may come from untrusted producers. Jinja escapes their markup. Control, direction and
invisible characters, which would change how the surrounding text looks, are shown as code points
(``U+200B``).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from itertools import groupby
from typing import Annotated, Any, Final, Generic, Literal, TypeVar
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from delayservice import __version__
from delayservice.admin import models, page_health
from delayservice.admin.cluster import cluster_of
from delayservice.admin.context import ApiContext
from delayservice.admin.problems import Refusal
from delayservice.admin.reading import (
    SCAN_MAX,
    UNITS_MS,
    backlog_of,
    located,
    may_be_beyond_window,
    newest_of_id,
    pauses_of,
    pending_page,
    position_of,
    timeline_of,
)
from delayservice.base.errors import DelayServiceError
from delayservice.contract.codes import EXPLANATIONS
from delayservice.contract.times import DUE_STOP_MS, read_instant_ms
from delayservice.inspection.query import Content, Position, Search

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
# Possible ends of an axis, times a power of ten.
_AXIS_ENDS: Final = (1, 2, 4, 6, 8, 10, 12, 16, 20, 24, 30, 40, 50, 60, 80, 100)


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


def round_up(number: int) -> int:
    """Return a round number that is not below ``number``, for the end of an axis; half of it is
    round, too.
    """
    power = int(10 ** max(len(str(number)) - 2, 0))
    return next(step * power for step in _AXIS_ENDS if step * power >= number)


def is_plain(text: str) -> bool:
    # Only such a text is safe to paste into a shell.
    return not any(unicodedata.category(char) in _UNSEEN for char in text)


def read_moment(text: str, now_ms: int) -> int | None:
    """Parse a typed point in time into epoch milliseconds; None: the text is empty. The page shows
    times without a zone, which are UTC, so it reads them, too.
    """
    asked = text.strip()
    if not asked:
        return None
    return read_instant_ms(f"{asked}Z" if _ZONELESS.fullmatch(asked) else asked, now_ms)


_ZONELESS: Final = re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.]+")


BUCKETS: Final = {"second": 60, "minute": 60, "hour": 48}
_ROWS: Final = 50
_LETTERS: Final = 100
_SOURCE: Final = re.compile(r"([A-Za-z0-9._-]{1,249}):(\d{1,10}):(\d{1,19})")

_Handler = Callable[[Request], Coroutine[Any, Any, Response]]
_Text = Annotated[str, Query(max_length=100_000)]
_Name = Annotated[str, Path(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
_Partition = Annotated[int, Path(ge=0, le=2**31 - 1)]
_Offset = Annotated[int, Path(ge=0, le=2**63 - 1)]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PagePart(Generic[T]):
    """Data of one part of a page, or the error text that is shown if it can't be read."""

    value: T | None = None
    problem: str = ""


def _part(ask: Callable[[], T]) -> PagePart[T]:
    try:
        return PagePart(ask())
    except (DelayServiceError, Refusal) as exc:
        return PagePart(problem=str(exc))


def environment() -> Environment:
    """Return the Jinja environment: it escapes all values, and fails on unknown variables."""
    made = Environment(
        loader=PackageLoader("delayservice.admin"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for word in (count, lateness, span, size, moment, relative, visible, content, round_up):
        made.filters[word.__name__] = word
    made.filters["raw"] = Content.of
    made.tests["plain"] = is_plain
    made.globals.update(value_chars_max=VALUE_CHARS_MAX, version=__version__)
    return made


class Pages:
    """Renderer of the web pages of one node."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._templates = environment()

    def draw(self, name: str, http_status: int = 200, **shown: object) -> HTMLResponse:
        template = self._templates.get_template(f"{name}.html")
        return HTMLResponse(template.render(here=name, **self._common(), **shown), http_status)

    def failed(self, status: int, detail: str) -> HTMLResponse:
        return self.draw("error", status, title=HTTPStatus(status).phrase, detail=detail)

    def _common(self) -> dict[str, object]:
        # The variables that every template uses.
        context = self._context
        now_ms = context.wall_ms()
        status = context.hub.status()
        cluster = _part(lambda: cluster_of(context, status.slices))
        pauses = _part(lambda: pauses_of(context)).value or []
        return {
            "node_id": context.settings.node.node_id,
            "now_ms": now_ms,
            "status": status,
            "cluster": cluster,
            "findings": page_health.findings_of(status, cluster.value, pauses, now_ms),
        }

    def overview(self, unit: str) -> HTMLResponse:
        """Return the page with the health, and the numbers of records due in each ``unit`` from now
        on.
        """
        context = self._context
        return self.draw(
            "overview",
            backlog=_part(lambda: backlog_of(context)),
            unit=unit,
            units=list(UNITS_MS),
            timeline=_part(lambda: timeline_of(context, unit, BUCKETS[unit])),
            workers_wanted=context.settings.node.workers,
        )

    def record(self, topic: str, partition: int, offset: int) -> HTMLResponse:
        row = self._context.read(topic, partition, offset)
        found = located(self._context, topic, partition, row)
        return self.draw("record", record=found, pending=found.pending)

    def pending(self, asked: TypedSearch) -> Response:
        """Return the page with the results of a search for pending records. A search by id that
        finds one record, or by ``topic:partition:offset`` instead of an id, redirects to the page
        of that record.
        """
        asked.read(self._context.wall_ms())
        if asked.errors:
            return self.draw("pending", 422, **self._searched(asked, None))
        if asked.id:
            return self._by_id(asked)
        page = _part(lambda: self._search(asked))
        return self.draw("pending", **self._searched(asked, page))

    def _by_id(self, asked: TypedSearch) -> Response:
        searched = asked.id.encode()
        rows = self._context.inquiry.find(searched)
        places = [(row.topic, row.partition, row.offset) for row in rows]
        source = _SOURCE.fullmatch(asked.id.strip())
        if not rows and source is not None:
            places = [(source[1], int(source[2]), int(source[3]))]
        elif not rows and (found := newest_of_id(self._context, searched)) is not None:
            places = [(found[0], found[1], found[2][0])]
        if len(places) == 1:
            topic, partition, offset = places[0]
            return RedirectResponse(f"/records/{topic}/{partition}/{offset}", 303)
        page = models.PendingPage(
            records=rows,
            next=None,
            scanned=len(rows),
            damaged=0,
            slices_elsewhere=self._context.slices_elsewhere(),
        )
        return self.draw("pending", **self._searched(asked, PagePart(page)))

    def _search(self, asked: TypedSearch) -> models.PendingPage:
        wanted = Search(
            from_ms=asked.from_ms,
            to_ms=asked.to_ms,
            target=asked.target or None,
            topic=asked.topic or None,
            limit=_ROWS,
            scan_max=SCAN_MAX,
            after=asked.position,
            beyond_window=may_be_beyond_window(self._context, asked.from_ms),
        )
        page = pending_page(self._context, wanted)
        page.records.sort(key=lambda row: row.due_ms)  # they come in the order of processing
        return page

    def _searched(
        self, asked: TypedSearch, page: PagePart[models.PendingPage] | None
    ) -> dict[str, Any]:
        levels = self._context.settings.levels.by_topic
        topics = _part(lambda: [one for one in self._context.delay_topics if one not in levels])
        more = page.value.next if page is not None and page.value is not None else None
        return {
            "asked": asked,
            "page": page,
            "topics": topics.value or [],
            "more": None if more is None else f"/pending?{asked.query(after=more)}",
            "first": f"/pending?{asked.query()}",
        }

    def dead_letters(self, code: str, last: int) -> HTMLResponse:
        """Return the page of the newest dead letters with this error code; empty: with any code.
        ``last``: largest number of offsets to read from the end of each partition.
        """
        found = self._context.dead_letters(last, code or None)
        shown: dict[str, Any] = {"code": code, "last": last, "explanations": EXPLANATIONS}
        return self.draw("dead_letters", found=found, rows_max=_LETTERS, **shown)


@dataclass(slots=True)
class TypedSearch:
    """Fields of the search form as typed, and their values, which ``read`` parses: ``from_ms`` and
    ``to_ms`` are epoch milliseconds, ``errors`` has messages by field name, and ``after`` is the
    cursor of the previous page of results, parsed as ``position``.
    """

    id: str
    target: str
    topic: str
    due_from: str
    due_to: str
    after: str
    from_ms: int = 0
    to_ms: int = DUE_STOP_MS
    position: Position | None = None
    errors: dict[str, str] = field(default_factory=dict)

    def read(self, now_ms: int) -> None:
        self.from_ms = self._moment("from", self.due_from, now_ms, 0)
        self.to_ms = self._moment("to", self.due_to, now_ms, DUE_STOP_MS)
        if not self.errors and self.from_ms >= self.to_ms:
            self.errors["to"] = "The end lies before the beginning: nothing is due in between."
        try:
            self.position = position_of(self.after) if self.after else None
        except Refusal:
            self.errors["id"] = "The address of this page is damaged: search again."

    def _moment(self, name: str, text: str, now_ms: int, default_ms: int) -> int:
        try:
            found_ms = read_moment(text, now_ms)
        except ValueError as exc:
            self.errors[name] = str(exc)
            return default_ms
        return default_ms if found_ms is None else found_ms

    def query(self, after: str = "") -> str:
        """Return the search, without its id, as a URL query. With ``after``, the cursor of the
        previous page of results, relative times become absolute, so that all pages show the same
        range.
        """
        fixed = {"from": self.due_from, "to": self.due_to}
        if after:
            fixed = {
                "from": str(self.from_ms) if self.from_ms else "",
                "to": str(self.to_ms) if self.to_ms < DUE_STOP_MS else "",
            }
        asked = {"target": self.target, "topic": self.topic, **fixed, "after": after}
        return urlencode({name: text for name, text in asked.items() if text})


def page_routes(context: ApiContext) -> APIRouter:
    pages = Pages(context)
    routes = APIRouter(route_class=_route_class(pages), include_in_schema=False)

    @routes.get("/")
    def overview(unit: Literal["second", "minute", "hour"] = "minute") -> HTMLResponse:
        return pages.overview(unit)

    @routes.get("/slices")
    def slices() -> HTMLResponse:
        return pages.draw("slices")

    @routes.get("/standing")
    def standing() -> HTMLResponse:
        return pages.draw("standing")

    @routes.get("/pending")
    def pending(
        id: _Text = "",  # noqa: A002  # the contract's word
        target: _Text = "",
        topic: _Text = "",
        from_: Annotated[str, Query(alias="from", max_length=100)] = "",
        to: Annotated[str, Query(max_length=100)] = "",
        after: Annotated[str, Query(max_length=1_000)] = "",
    ) -> Response:
        return pages.pending(TypedSearch(id, target.strip(), topic, from_, to, after))

    @routes.get("/records/{topic}/{partition}/{offset}")
    def record(topic: _Name, partition: _Partition, offset: _Offset) -> HTMLResponse:
        return pages.record(topic, partition, offset)

    @routes.get("/dead-letters")
    def dead_letters(
        code: Annotated[str, Query(max_length=100)] = "",
        last: Annotated[int, Query(ge=1, le=20_000)] = 2_000,
    ) -> HTMLResponse:
        return pages.dead_letters(code, last)

    return routes


def _route_class(pages: Pages) -> type[APIRoute]:
    """Return a FastAPI route class that answers errors with HTML pages."""

    class PageRoute(APIRoute):
        def get_route_handler(self) -> _Handler:
            handle = super().get_route_handler()

            async def handle_kindly(request: Request) -> Response:
                try:
                    return await handle(request)
                except Refusal as exc:
                    if exc.status == HTTPStatus.UNAUTHORIZED:
                        raise
                    return await run_in_threadpool(pages.failed, exc.status, exc.detail)
                except DelayServiceError as exc:
                    return await run_in_threadpool(pages.failed, 503, str(exc))
                except RequestValidationError as exc:
                    said = "; ".join(f"{one['loc'][-1]}: {one['msg']}" for one in exc.errors())
                    detail = f"The address asks for something that there is not. {said}"
                    return await run_in_threadpool(pages.failed, 422, detail)

            return handle_kindly

    return PageRoute
