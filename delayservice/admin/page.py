"""Web page of a node: the data of the API, rendered as HTML on the server.

The page is complete without JavaScript. Its script loads the same HTML once a second and replaces
the changed parts, so that only the server renders.

A change is a form that shows what it would do, takes a token, and is made by the API. No
other site can post it in a user's name, because the token is a field of the form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from importlib.resources import files
from typing import Annotated, Any, Final, Generic, Literal, TypeAlias, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

import httpx
from fastapi import APIRouter, Path, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.routing import APIRoute
from pydantic import ValidationError

from delayservice.admin import models, page_health
from delayservice.admin.changing import bulk
from delayservice.admin.cluster import cluster_of
from delayservice.admin.context import ApiContext
from delayservice.admin.guards import BY
from delayservice.admin.problems import Refusal, plain
from delayservice.admin.reading import (
    UNITS_MS,
    Offset,
    Partition,
    TopicName,
    backlog_of,
    located,
    of_id,
    pauses_of,
    pending_page,
    timeline_of,
)
from delayservice.admin.words import environment
from delayservice.base.errors import DelayServiceError
from delayservice.contract.codes import EXPLANATIONS
from delayservice.contract.entry import read_place

BUCKETS: Final = {"second": 60, "minute": 60, "hour": 48}
_ROWS: Final = 50
_LETTERS: Final = 100
# What a change means, for people, and the request of the API that makes it.
_CHANGES: Final = {
    "cancel": ("It is not delivered any more. That can't be undone.", "POST", "records/cancel"),
    "fire": ("It is delivered at once, which can't be undone.", "POST", "records/fire"),
    "reschedule": ("A copy with the new time replaces it.", "POST", "records/reschedule"),
    "bulk": ("All records that match are changed, a page at a time.", "POST", "records/bulk"),
    "pause": ("Nothing is delivered until it is resumed.", "PUT", "pauses/{kind}/{name}"),
    "resume": ("What was held meanwhile is delivered.", "DELETE", "pauses/{kind}/{name}"),
    "replay": ("Its record is written again, once.", "POST", "dead-letters/replay"),
}

_Handler = Callable[[Request], Coroutine[Any, Any, Response]]
_Change: TypeAlias = Literal["cancel", "fire", "reschedule", "bulk", "pause", "resume", "replay"]
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
            "by": BY.get(),
            "now_ms": now_ms,
            "status": status,
            "cluster": cluster,
            "pauses": pauses,
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

    def pending(self, typed: Mapping[str, str]) -> Response:
        """Return the page with the results of a search for pending records; ``typed``: fields of
        its form. An id that one record has, or ``topic:partition:offset`` instead of an id,
        redirects to the page of that record.
        """
        shown: dict[str, Any] = {"typed": typed, "page": None, "more": "", "all": ""}
        levels = self._context.settings.levels.by_topic
        topics = _part(lambda: [one for one in self._context.delay_topics if one not in levels])
        given = {name: text.strip() for name, text in typed.items() if text.strip()}
        searched = given.get("id", "")
        if searched and not set("*?") & set(searched):
            return self._by_id(searched)
        try:
            asked = models.Matching.model_validate({**given, "limit": _ROWS})
            is_empty = asked.from_ >= asked.to
            errors = {"to": "The end lies before the beginning."} if is_empty else {}
        except ValidationError as exc:
            errors = {str(one["loc"][0]): plain(one["msg"]) for one in exc.errors()}
        shown |= {"topics": topics.value or [], "errors": errors}
        if errors:
            return self.draw("pending", 422, **shown)
        shown["page"] = page = _part(lambda: pending_page(self._context, asked))
        if page.value is not None:
            # They come in the order of processing.
            page.value.records.sort(key=lambda row: row.due_ms)
            # Absolute times, so that all pages show the same range.
            fixed = {**given, "from": asked.from_, "to": asked.to}
            fixed.pop("cursor", None)
            shown["all"] = urlencode(fixed)
            shown["more"] = page.value.next and urlencode({**fixed, "cursor": page.value.next})
        return self.draw("pending", **shown)

    def _by_id(self, searched: str) -> Response:
        place = read_place(searched)
        try:
            places = [
                (one.topic, one.partition, one.offset)
                for one in of_id(self._context, searched.encode())
            ]
        except Refusal:
            if place is None:
                raise
            places = [place]
        if len(places) == 1:
            topic, partition, offset = places[0]
            return RedirectResponse(f"/records/{topic}/{partition}/{offset}", 303)
        return self.draw("places", places=places)

    def dead_letters(self, code: str, last: int) -> HTMLResponse:
        """Return the page of the newest dead letters with this error code; empty: with any code.
        ``last``: largest number of offsets to read from the end of each partition.
        """
        found = self._context.dead_letters(last, code or None)
        shown: dict[str, Any] = {"code": code, "last": last, "explanations": EXPLANATIONS}
        return self.draw("dead_letters", found=found, rows_max=_LETTERS, **shown)

    def run_book(self, alert: str) -> HTMLResponse:
        """Return the page with the run-book that ``docs/operations.md`` has for an alert."""
        page = files("delayservice.admin").joinpath("operations.md").read_text("utf-8")
        section = next((one for one in page.split("\n### ") if f'<a id="{alert}">' in one), None)
        if section is None:
            raise Refusal(404, f"there is no run-book {alert}")
        title, _, text = section.partition("\n")
        text = re.sub(r"<a id=.*\n|```(?:sh)?\n|\*\*", "", text.partition("\n## ")[0])
        text = re.sub(r"\[([^]]+)]\([^)]+\)", r"\1", text).strip()
        return self.draw("run_book", title=title, text=text)

    def form(
        self,
        change: _Change,
        asked: Mapping[str, str],
        typed: Mapping[str, str],
        done: httpx.Response | None,
    ) -> HTMLResponse:
        """Return the form of a change of what ``asked`` names, and the API's answer ``done``, if it
        was posted.
        """
        said = done.json() if done is not None and done.content else {}
        matching = None
        if change == "bulk" and done is None:
            counted = {**asked, "dry_run": True, "after_ms": 0}
            matching = bulk(self._context, models.Bulk.model_validate(counted))
        more = said.get("next") and urlencode({**asked, "cursor": said["next"]})
        found = {name: text for name, text in asked.items() if name not in {"operation", "cursor"}}
        status = HTTPStatus.OK if done is None else done.status_code
        return self.draw(
            "change",
            HTTPStatus.OK if status == HTTPStatus.NO_CONTENT else status,
            change=change,
            means=_CHANGES[change][0],
            asked=asked,
            typed=typed,
            matching=matching,
            is_done=done is not None and done.is_success,
            said=said,
            answered=status,
            more=more,
            found=urlencode(found),
        )


async def _posted(
    request: Request, change: _Change, asked: Mapping[str, str], typed: Mapping[str, str]
) -> httpx.Response:
    """Make a change by the API of this node, which checks the token and all else."""
    _, method, path = _CHANGES[change]
    kind, name = (quote(asked.get(one, ""), safe="") for one in ("kind", "name"))
    body: dict[str, str] | None = {**asked, **typed}
    if change in ("pause", "resume"):
        body = {"reason": typed.get("reason", "")} if change == "pause" else None
    # As bytes: what is typed need not be ASCII.
    bearer = {b"Authorization": b"Bearer " + typed.get("token", "").encode()}
    if body is not None:
        body.pop("token", None)
    transport = httpx.ASGITransport(request.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.request(
            method, f"/v1/{path.format(kind=kind, name=name)}", json=body, headers=bearer
        )


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
    def pending(request: Request) -> Response:
        return pages.pending(request.query_params)

    @routes.get("/records/{topic}/{partition}/{offset}")
    def record(topic: TopicName, partition: Partition, offset: Offset) -> HTMLResponse:
        return pages.record(topic, partition, offset)

    @routes.get("/dead-letters")
    def dead_letters(
        code: Annotated[str, Query(max_length=100)] = "",
        last: Annotated[int, Query(ge=1, le=20_000)] = 2_000,
    ) -> HTMLResponse:
        return pages.dead_letters(code, last)

    @routes.get("/run-books/{alert}")
    def run_book(alert: Annotated[str, Path(pattern="^[a-z]{1,50}$")]) -> HTMLResponse:
        return pages.run_book(alert)

    @routes.get("/change/{change}")
    def form(change: _Change, request: Request) -> HTMLResponse:
        return pages.form(change, request.query_params, {}, None)

    @routes.post("/change/{change}")
    async def post(change: _Change, request: Request) -> HTMLResponse:
        asked, body = request.query_params, (await request.body()).decode(errors="replace")
        typed = dict(parse_qsl(body))
        done = await _posted(request, change, asked, typed)
        return await run_in_threadpool(pages.form, change, asked, typed, done)

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
                except (RequestValidationError, ValidationError) as exc:
                    said = "; ".join(f"{one['loc'][-1]}: {one['msg']}" for one in exc.errors())
                    detail = f"The address asks for something that there is not. {said}"
                    return await run_in_threadpool(pages.failed, 422, detail)

            return handle_kindly

    return PageRoute
