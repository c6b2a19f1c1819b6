"""Server of a node's admin API and web page: the ASGI application, and the tokens."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import structlog
from fastapi import Depends, FastAPI
from starlette.staticfiles import StaticFiles

from connectors.kafka.clients import admin_client
from connectors.kafka.controls import ControlClient
from connectors.kafka.node_topics import NodeTopicReader, PauseWatcher
from delayservice import __version__
from delayservice.admin import problems
from delayservice.admin.changing import WaitingRoom, changing_routes
from delayservice.admin.context import ApiContext
from delayservice.admin.guards import (
    RequestGate,
    knows_query,
    reader,
    takes_json,
    writer,
)
from delayservice.admin.http_server import Certificate, HttpServer
from delayservice.admin.inquiry import Workers
from delayservice.admin.page import page_routes
from delayservice.admin.probes import probe_routes
from delayservice.admin.reading import reading_routes
from delayservice.base.errors import SettingsError
from delayservice.base.secret_file import make_secret_file
from delayservice.config.admin import TOKEN_CHARS_MIN, NamedToken, made_token_path
from delayservice.config.settings import Settings
from delayservice.inspection.asking import WorkerClient
from delayservice.metrics.hub import MetricsHub

_ABOUT: Final = """\
State of a node of the Kafka delay service, and changes of pending records and pauses.

Times are epoch milliseconds. Errors are problem details (RFC 9457). Reading is open on a loopback
address; changes need a token as a bearer. A node answers for its whole copies: where
`slices_elsewhere` is not empty, ask the other nodes as well.
"""


def make_app(context: ApiContext, tokens: Sequence[NamedToken]) -> FastAPI:
    """Return the ASGI application with all routes. Every change needs a token that may change."""
    admin = context.settings.admin
    app = FastAPI(
        title="Kafka delay service",
        description=_ABOUT,
        version=__version__,
        docs_url=None,  # both would load scripts from elsewhere
        redoc_url=None,
    )
    problems.install(app)

    may_read = [] if admin.are_reads_open else [Depends(reader(tokens))]
    app.include_router(probe_routes(context))
    is_exact = [Depends(knows_query), Depends(takes_json)]
    app.include_router(reading_routes(context), dependencies=[*may_read, *is_exact])
    may_write = [Depends(writer(tokens)), *is_exact, Depends(WaitingRoom())]
    app.include_router(changing_routes(context), dependencies=may_write)
    app.include_router(page_routes(context), dependencies=may_read)
    # Without the token, as style and script are the same for every client.
    app.mount("/static", StaticFiles(packages=[("delayservice.admin", "static")]))
    own_host = admin.listen.rpartition(":")[0].lower()
    app.add_middleware(
        RequestGate, hosts=frozenset({own_host, *(host.lower() for host in admin.hosts)})
    )
    return app


_log = structlog.get_logger(__name__)


def admin_tokens(settings: Settings) -> list[NamedToken]:
    """Return the configured tokens. If none of them may change, add the one named ``admin`` in a
    file of the node's state folder, which only the node's user can read; the first call makes it.
    """
    configured = settings.admin.configured_tokens()
    if any(token.may_change for token in configured):
        return configured
    return [NamedToken("admin", _made_token(settings.node.state_dir), may_change=True), *configured]


def _made_token(state_dir: Path) -> str:
    path = made_token_path(state_dir)
    try:
        if not path.exists():
            make_secret_file(path, secrets.token_urlsafe(32))
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"the token in {path} can't be read or made: {exc}") from exc
    if len(token) < TOKEN_CHARS_MIN:
        raise SettingsError(
            f"{path} holds {len(token)} characters, and the token needs {TOKEN_CHARS_MIN} at "
            "least: delete it, and the node makes another when it starts"
        )
    return token


class AdminServer:
    """Server of the admin API and the web page. ``askers`` returns a client for each current
    worker.
    """

    def __init__(
        self, settings: Settings, hub: MetricsHub, askers: Callable[[], Sequence[WorkerClient]]
    ) -> None:
        kafka = settings.kafka
        admin = admin_client(kafka.client_config("admin"))
        self._desk = ControlClient(
            kafka.client_config("producer"),
            kafka.client_config("consumer"),
            admin,
            settings.topics.outcomes,
        )
        pauses = PauseWatcher(settings.topics.pauses)
        NodeTopicReader([pauses], kafka.client_config("consumer"), settings.node.node_id)
        context = ApiContext(
            settings,
            hub=hub,
            inquiry=Workers(askers),
            admin=admin,
            desk=self._desk,
            pauses=pauses,
        )
        app = make_app(context, admin_tokens(settings))
        files = settings.admin.certificate_files
        certificate = None if files is None else Certificate(*files)
        self._server = HttpServer(app, "admin", settings.admin.listen, certificate)

    def serve(self) -> str | None:
        """Start to answer requests. Return ``host:port`` of the open socket; None: there is no
        server.
        """
        return self._server.serve()

    def stop(self) -> None:
        """Stop accepting requests, and end those that wait for the outcome of a change."""
        self._desk.stop()
        self._server.stop()

    def close(self) -> None:
        self.stop()
        self._server.close()
