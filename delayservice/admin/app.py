"""ASGI application of the admin API and the web page."""

from __future__ import annotations

from typing import Final

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.staticfiles import StaticFiles

from delayservice import __version__
from delayservice.admin import problems
from delayservice.admin.changing import WaitingRoom, changing_routes
from delayservice.admin.cluster import health_routes
from delayservice.admin.context import ApiContext
from delayservice.admin.guards import (
    NeedsToken,
    RequestGate,
    knows_query,
    reader,
    takes_json,
    writer,
)
from delayservice.admin.page import page_routes
from delayservice.admin.pausing import pause_routes
from delayservice.admin.reading import reading_routes

_ABOUT: Final = """\
What a node of the Kafka delay service tells people, and what they may ask of it.

Times are epoch milliseconds. Errors are problem details (RFC 9457). Reading is open on a loopback
address; changes need the token as a bearer. A node answers for the copies that it keeps: where
`slices_elsewhere` is not empty, ask the other nodes as well.
"""


def make_app(context: ApiContext, token: str) -> FastAPI:
    """Return the ASGI application with all routes. Every change needs the admin token."""
    admin = context.settings.admin
    app = FastAPI(
        title="Kafka delay service",
        description=_ABOUT,
        version=__version__,
        docs_url=None,  # both would load scripts from elsewhere
        redoc_url=None,
    )
    problems.install(app)

    @app.exception_handler(NeedsToken)
    async def needs_token(_: Request, exc: NeedsToken) -> JSONResponse:
        challenge = {"WWW-Authenticate": f'{exc.scheme} realm="delayservice"'}
        return problems.answer(exc.status, exc.detail, headers=challenge)

    may_read = [] if admin.are_reads_open else [Depends(reader(token))]
    app.include_router(health_routes(context))
    is_exact = [Depends(knows_query), Depends(takes_json)]
    app.include_router(reading_routes(context), dependencies=[*may_read, *is_exact])
    may_write = [Depends(writer(token)), *is_exact]
    waiting = WaitingRoom()
    app.include_router(changing_routes(context, waiting), dependencies=may_write)
    app.include_router(pause_routes(context, waiting), dependencies=may_write)
    app.include_router(page_routes(context), dependencies=may_read)
    # Without the token, as style and script are the same for every client.
    app.mount("/static", StaticFiles(packages=[("delayservice.admin", "static")]))
    own_host = admin.listen.rpartition(":")[0].lower()
    app.add_middleware(
        RequestGate, hosts=frozenset({own_host, *(host.lower() for host in admin.hosts)})
    )
    return app
