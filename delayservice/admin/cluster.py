"""HTTP routes for the health and state of the node and the cluster."""

from __future__ import annotations

from fastapi import APIRouter

from delayservice.admin import models
from delayservice.admin.context import ApiContext
from delayservice.admin.problems import Refusal, described
from delayservice.engine.electability import SILENT_S_MAX
from delayservice.metrics.facts import why_not_electable
from delayservice.metrics.status import NodeState


def health_routes(context: ApiContext) -> APIRouter:
    """Return the routes ``/healthz`` and ``/readyz`` for probes, which need no token. They run on
    the event loop, so that they answer even if all threads are busy.
    """
    routes = APIRouter(tags=["health"])

    @routes.get("/healthz", responses=described())
    async def healthz() -> models.Health:
        """Return whether the node lives: no worker hangs."""
        silent = [w for w in context.hub.facts().workers if w.silent_s > SILENT_S_MAX]
        if silent:
            said = ", ".join(f"{w.worker} for {w.silent_s:.0f} s" for w in silent)
            raise Refusal(503, f"workers are silent: {said}")
        return models.Health(status="ok")

    @routes.get("/readyz", responses=described())
    async def readyz() -> models.Health:
        """Return whether the node may own every slice that it has a copy of; if not, why.

        Other alarms are in `/v1/node`: they don't say that it should be asked no more.
        """
        reasons = why_not_electable(context.hub.facts())
        if reasons:
            raise Refusal(503, "; ".join(reasons))
        return models.Health(status="ok")

    return routes


def add_cluster_routes(routes: APIRouter, context: ApiContext) -> None:
    @routes.get("/node", tags=["cluster"])
    def node() -> NodeState:
        """This node, its workers and slices."""
        return context.hub.status()

    @routes.get("/cluster", tags=["cluster"])
    def cluster() -> models.Cluster:
        """All nodes, who owns which slice, and how far every copy is."""
        return cluster_of(context)


def cluster_of(context: ApiContext) -> models.Cluster:
    """Return the nodes, slices and delay topics of the cluster, as this node knows them."""
    members = context.inquiry.members()
    topics = context.delay_topics
    here = {status.slice: status for status in context.hub.status().slices}
    furthest: dict[int, int] = {}
    for copy in members.copies:
        furthest[copy.slice] = max(furthest.get(copy.slice, 0), copy.stored)
    slices = []
    for held in members.slices:
        mine = here.get(held.slice)
        slices.append(
            models.Slice(
                slice=held.slice,
                shards=[f"{name}:{held.slice}" for name, n in topics.items() if held.slice < n],
                owner=held.owner,
                epoch=max(held.epoch, mine.epoch if mine is not None else 0),
                heir=held.heir,
                copies=[
                    models.Copy(
                        node=copy.node,
                        stored=copy.stored,
                        behind=furthest[held.slice] - copy.stored,
                        caught_up=copy.caught_up,
                    )
                    for copy in members.copies
                    if copy.slice == held.slice
                ],
                here=None if mine is None else models.Here.model_validate(mine),
            )
        )
    levels = context.settings.levels.by_topic
    return models.Cluster(
        node_id=context.settings.node.node_id,
        standalone=context.settings.standalone,
        nodes=[models.Node.model_validate(node) for node in members.nodes],
        slices=slices,
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
