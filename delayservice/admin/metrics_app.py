"""``/metrics`` for Prometheus and ``/status`` for people and health checks.

They listen on a separate address, ``metrics.listen``, because other machines read them without a
token.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from http import HTTPStatus

from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from delayservice.metrics.families import export
from delayservice.metrics.hub import MetricsHub


class _Collector(Collector):
    def __init__(self, hub: MetricsHub) -> None:
        self._hub = hub

    def collect(self) -> Iterable[Metric]:
        return export(self._hub.facts())


def make_metrics_app(hub: MetricsHub) -> ASGIApp:
    """Return the ASGI application of ``/metrics`` and ``/status``. It accepts any host name."""
    registry = CollectorRegistry()
    registry.register(_Collector(hub))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        response = await run_in_threadpool(_respond, hub, registry, Request(scope))
        await response(scope, receive, send)

    return app


def _respond(hub: MetricsHub, registry: CollectorRegistry, request: Request) -> Response:
    if request.method not in {"GET", "HEAD"}:
        return _response(b"only GET\n", "text/plain", HTTPStatus.METHOD_NOT_ALLOWED)
    path = request.scope["path"]
    if path == "/status":
        return _response(hub.status().model_dump_json().encode(), "application/json")
    if path != "/metrics":
        return _response(b"there are /metrics and /status\n", "text/plain", HTTPStatus.NOT_FOUND)
    names = request.query_params.getlist("name[]")
    encode, kind = choose_encoder(request.headers.get("accept", ""))
    body = encode(registry.restricted_registry(names) if names else registry)
    if not gzip_accepted(request.headers.get("accept-encoding", "")):
        return _response(body, kind)
    response = _response(gzip.compress(body), kind)
    response.headers["Content-Encoding"] = "gzip"
    return response


def _response(body: bytes, kind: str, status: int = HTTPStatus.OK) -> Response:
    # As a header: Starlette adds a charset to a media type.
    return Response(body, status, {"Content-Type": kind})
