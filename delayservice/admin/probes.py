"""HTTP routes ``/healthz`` and ``/readyz``, which need no token.

They run on the event loop, so that they answer even if all threads are busy.
"""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter

from delayservice.admin.context import ApiContext
from delayservice.admin.problems import Refusal, described
from delayservice.engine.electability import SILENT_S_MAX
from delayservice.metrics.facts import why_not_electable


def probe_routes(context: ApiContext) -> APIRouter:
    routes = APIRouter(tags=["health"])

    @routes.get("/healthz", responses=described())
    async def healthz() -> dict[Literal["status"], Literal["ok"]]:
        """Return whether the node lives: every worker reports."""
        silent = [w for w in context.hub.facts().workers if w.silent_s > SILENT_S_MAX]
        if silent:
            said = ", ".join(f"{w.worker} for {w.silent_s:.0f} s" for w in silent)
            raise Refusal(503, f"workers are silent: {said}")
        return {"status": "ok"}

    @routes.get("/readyz", responses=described())
    async def readyz() -> dict[Literal["status"], Literal["ok"]]:
        """Return whether the node may own every slice that it has a copy of; if not, why.

        Other alarms are in `/v1/node`: they don't say that it should be asked no more.
        """
        reasons = why_not_electable(context.hub.facts())
        if reasons:
            raise Refusal(503, "; ".join(reasons))
        return {"status": "ok"}

    return routes
