"""HTTP routes for the state of the node and the cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from fastapi import APIRouter

from delayservice.admin import models
from delayservice.admin.context import ApiContext
from delayservice.metrics.status import NodeState, SliceState
from ha.members import Holding, MemberCopies


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
