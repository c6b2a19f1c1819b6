"""HTTP routes for the health and state of the node and the cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from fastapi import APIRouter

from delayservice.admin import models
from delayservice.admin.context import ApiContext
from delayservice.admin.problems import Refusal, described
from delayservice.engine.electability import SILENT_S_MAX
from delayservice.metrics.facts import why_not_electable
from delayservice.metrics.status import NodeState, SliceState
from ha.members import Holding, MemberCopies


def health_routes(context: ApiContext) -> APIRouter:
    """Return the routes ``/healthz`` and ``/readyz`` for probes, which need no token. They run on
    the event loop, so that they answer even if all threads are busy.
    """
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


def add_cluster_routes(routes: APIRouter, context: ApiContext) -> None:
    @routes.get("/node", tags=["cluster"])
    def node() -> NodeState:
        """This node, its workers and slices."""
        return context.hub.status()

    @routes.get("/cluster", tags=["cluster"])
    def cluster() -> models.Cluster:
        """All nodes, who owns which slice, and how far every copy is."""
        return cluster_of(context, context.hub.slices())


def cluster_of(context: ApiContext, here: Iterable[SliceState]) -> models.Cluster:
    """Return the nodes, slices and delay topics of the cluster. ``here``: slices as this node sees
    them.
    """
    members, topics = context.inquiry.members(), context.delay_topics
    levels = context.settings.levels.by_topic
    seen = {one.slice: one for one in here}
    copies: dict[int, list[MemberCopies]] = defaultdict(list)
    for copy in members.copies:
        copies[copy.slice].append(copy)
    return models.Cluster(
        node_id=context.settings.node.node_id,
        standalone=context.settings.standalone,
        nodes=members.nodes,
        slices=[
            _slice(held, topics, copies[held.slice], seen.get(held.slice))
            for held in members.slices
        ],
        ownerless=[held.slice for held in members.slices if not held.owner],
        topics=[
            models.DelayTopic(
                name=name,
                partitions=count,
                level_ms=levels.get(name),
                is_paused=context.pauses.holds(name),
            )
            for name, count in topics.items()
        ],
    )


def _slice(
    held: Holding,
    topics: Mapping[str, int],
    copies: Sequence[MemberCopies],
    here: SliceState | None,
) -> models.Slice:
    furthest = max((copy.stored for copy in copies), default=0)
    return models.Slice(
        slice=held.slice,
        shards=[f"{name}:{held.slice}" for name, count in topics.items() if held.slice < count],
        owner=held.owner,
        epoch=held.epoch if here is None else max(held.epoch, here.epoch),
        heir=held.heir,
        copies=[
            models.Copy(
                node=copy.node,
                stored=copy.stored,
                behind=furthest - copy.stored,
                caught_up=copy.caught_up,
            )
            for copy in copies
        ],
        here=here,
    )
