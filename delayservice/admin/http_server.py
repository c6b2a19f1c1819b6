"""HTTP server of a node, uvicorn on a thread of the supervisor process; and the application of
``/metrics`` for Prometheus and ``/status`` for people and health checks.

The latter listens on a separate address, ``metrics.listen``, because other machines read it without
a token.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterable
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import structlog
import uvicorn
from prometheus_client import Metric, make_asgi_app
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from delayservice.base.errors import DelayServiceError, SettingsError
from delayservice.metrics.families import export
from delayservice.metrics.hub import MetricsHub

_CONCURRENCY_MAX: Final = 256
_CLOSE_S: Final = 3
_LOOK_S: Final = 0.5
# Time for which a client may send no whole request, or read nothing of an answer, in s.
_REQUEST_S_MAX: Final = 15.0

_log = structlog.get_logger(__name__)


class Certificate:
    """TLS context with the certificate and key of two PEM files, which are read again when they
    change. Raises ``SettingsError`` if they can't be read at first.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = (certificate, key)
        self._stamps = self._look()
        try:
            self.context = self._read()
        except OSError as exc:  # that of TLS is one
            raise SettingsError(
                f"admin.certificate_file ({certificate}) and admin.key_file ({key}) can't be used, "
                f"as a PEM certificate and its key without a password: {exc}"
            ) from exc

    def renew(self) -> None:
        stamps = self._look()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            self._read()  # tried first: a bad pair would leave the context without a key
            self.context.load_cert_chain(*self._files, password="")
        except OSError as exc:
            _log.error("certificate_not_read", file=str(self._files[0]), error=str(exc))
        else:
            _log.info("certificate_read", file=str(self._files[0]))

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # With a password of its own, an encrypted key is an error, and is not asked for on the
        # terminal.
        context.load_cert_chain(*self._files, password="")
        return context

    def _look(self) -> list[tuple[int, int] | None]:
        return [_stamp(file) for file in self._files]


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


class HttpServer:
    """Server of one application on one address.

    Args:
        app: application that answers the requests.
        section: name of the settings' section with the key ``listen``; also the thread's name.
        listen: ``host:port``; port 0: any free one; empty: no server.
        certificate: None: without TLS.
    """

    def __init__(
        self, app: ASGIApp, section: str, listen: str, certificate: Certificate | None = None
    ) -> None:
        self._section = section
        self._listen = listen
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=_CONCURRENCY_MAX,
            timeout_graceful_shutdown=_CLOSE_S,
            lifespan="off",
            ws="none",
            ssl_context_factory=None if certificate is None else lambda *_: certificate.context,
        )
        self._server = _Server(config, certificate)
        # uvicorn logs its own start and end, which the node's log has already.
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        self._thread: threading.Thread | None = None

    def serve(self) -> str | None:
        """Start to listen, and answer requests on a new thread. Return ``host:port`` of the open
        socket; None: there is no server.
        """
        if not self._listen:
            return None
        listener = self._bound()
        self._thread = threading.Thread(
            target=self._server.run, args=([listener],), name=self._section, daemon=True
        )
        self._thread.start()
        host, port = listener.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def stop(self) -> None:
        """Stop accepting requests, without waiting."""
        self._server.should_exit = True

    def close(self) -> None:
        """Stop accepting requests, and wait up to 4 s for the accepted ones. May be called without
        ``serve``.
        """
        self.stop()
        if self._thread is not None:
            self._thread.join(_CLOSE_S + 1)

    def _bound(self) -> socket.socket:
        host, _, port = self._listen.rpartition(":")
        host = host.strip("[]")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, int(port)))
            listener.listen()
        except OSError as exc:
            listener.close()
            setting = f"{self._section}.listen"
            raise DelayServiceError(
                f"{setting} is {self._listen}, which can't be listened on: {exc.strerror or exc}; "
                f"set {setting} to a free address, port 0 for any, or nothing for none"
            ) from exc
        return listener


class _Server(uvicorn.Server):
    """uvicorn server that checks every half second whether to end, whether its certificate has
    changed, and which clients send no request or read no answer: uvicorn lets them use up its
    connections. Its own ten checks a second took a tenth of an idle node's CPU time.
    """

    def __init__(self, config: uvicorn.Config, certificate: Certificate | None) -> None:
        super().__init__(config)
        self._certificate = certificate
        # When each connection was first seen to await its client as it does now, by the monotonic
        # clock: after the same request, with as much of its answer unsent.
        self._awaits_since_s: dict[tuple[Any, Any, int], float] = {}

    async def main_loop(self) -> None:
        # Each check also updates the ``Date`` header.
        await self.on_tick(0)
        is_over = False
        while not is_over:
            await asyncio.sleep(_LOOK_S)
            if self._certificate is not None:
                self._certificate.renew()
            self._end_silent(time.monotonic())
            is_over = await self.on_tick(0)

    def _end_silent(self, now_s: float) -> None:
        connections: set[Any] = self.server_state.connections
        awaiting = [
            (one, one.cycle, one.transport.get_write_buffer_size())
            for one in connections
            if _awaits_client(one)
        ]
        self._awaits_since_s = {one: self._awaits_since_s.get(one, now_s) for one in awaiting}
        for (connection, _, _), since_s in self._awaits_since_s.items():
            if now_s - since_s > _REQUEST_S_MAX:
                connection.transport.abort()


def _awaits_client(connection: Any) -> bool:  # noqa: ANN401  # one of uvicorn's protocols
    cycle = connection.cycle
    return cycle is None or cycle.response_complete or cycle.more_body


class _Collector(Collector):
    def __init__(self, hub: MetricsHub) -> None:
        self._hub = hub

    def collect(self) -> Iterable[Metric]:
        return export(self._hub.facts())


def make_metrics_app(hub: MetricsHub) -> ASGIApp:
    """Return the ASGI application of ``/metrics`` and ``/status``. It accepts any host name."""
    registry = CollectorRegistry()
    registry.register(_Collector(hub))

    metrics = make_asgi_app(registry)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request, path = Request(scope), scope["path"]
        status, answered = HTTPStatus.OK, "there are /metrics and /status\n"
        if request.method not in {"GET", "HEAD"}:
            status, answered = HTTPStatus.METHOD_NOT_ALLOWED, "only GET\n"
        elif path == "/metrics":
            await metrics(scope, receive, send)
            return
        elif path == "/status":
            answered = hub.status().model_dump_json()
        else:
            status = HTTPStatus.NOT_FOUND
        kind = "application/json" if path == "/status" else "text/plain"
        await Response(answered, status, media_type=kind)(scope, receive, send)

    return app
