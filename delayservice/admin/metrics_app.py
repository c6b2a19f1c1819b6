"""``/metrics`` for Prometheus and ``/status`` for people and health checks.

They have an address of their own, ``metrics.listen``, for they are read from other machines, and
need no token.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from delayservice.metrics.families import export
from delayservice.metrics.hub import MetricsHub


class _Collector(Collector):
    def __init__(self, hub: MetricsHub) -> None:
        self._hub = hub

    def collect(self) -> Iterable[Metric]:
        """Return all metrics of this moment."""
        return export(self._hub.facts())


def make_metrics_app(hub: MetricsHub) -> Starlette:
    """Return the application that shows what ``hub`` has collected."""
    registry = CollectorRegistry()
    registry.register(_Collector(hub))

    def metrics(request: Request) -> Response:
        names = request.query_params.getlist("name[]")
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
        shown = registry.restricted_registry(names) if names else registry
        return Response(encode(shown), headers={"Content-Type": media_type})

    def status(_: Request) -> Response:
        return Response(hub.status().model_dump_json(), media_type="application/json")

    async def not_found(_: Request, _exc: Exception) -> Response:
        return PlainTextResponse("there are /metrics and /status\n", 404)

    async def not_allowed(_: Request, _exc: Exception) -> Response:
        return PlainTextResponse("only GET\n", 405, {"Allow": "GET, HEAD"})

    return Starlette(
        routes=[Route("/metrics", metrics), Route("/status", status)],
        middleware=[Middleware(GZipMiddleware)],
        exception_handlers={404: not_found, 405: not_allowed},
    )
