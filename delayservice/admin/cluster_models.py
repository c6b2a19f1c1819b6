"""Models of the cluster's state in the API. Those of a node's state are in ``metrics.status``."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Node(BaseModel):
    """A node of the cluster. ``address`` is its host name."""

    model_config = ConfigDict(from_attributes=True)

    node_id: str
    broker_id: int | None
    rack: str
    address: str
    workers: int
    alive: list[int] = Field(description="Its workers that live.")


class Copy(BaseModel):
    """A replica of a slice."""

    node: str
    stored: int = Field(description="Source offsets stored, added up over the delay topics.")
    behind: int = Field(description="Offsets that the furthest copy has and this one has not.")
    caught_up: bool = Field(description="Near enough to take over.")


class Here(BaseModel):
    """A slice as this node sees it."""

    model_config = ConfigDict(from_attributes=True)

    state: str
    worker: int
    lag_s: float = Field(description="How far its copy is behind the owner's; -1: not known.")
    source_lag: int
    pending: int
    oldest_due_ms: int | None
    alarm: str


class Slice(BaseModel):
    """One slice: partition n of every delay topic that has so many."""

    slice: int
    shards: list[str] = Field(description="Its shards, `topic:partition`.")
    owner: str = Field(description="Node that owns it; empty: no node does.")
    epoch: int
    heir: str = Field(description="Node that it is being handed over to; empty: none.")
    copies: list[Copy]
    here: Here | None = Field(description="null: this node keeps no copy.")


class DelayTopic(BaseModel):
    """A delay topic."""

    name: str
    partitions: int
    level_ms: int | None = Field(description="Its fixed delay; null: any delay.")
    is_paused: bool


class Cluster(BaseModel):
    """Nodes, slices and delay topics."""

    node_id: str = Field(description="The node that says this.")
    standalone: bool = Field(description="No ZooKeeper: this node owns all.")
    nodes: list[Node]
    slices: list[Slice]
    ownerless: list[int] = Field(description="Slices that no node owns now.")
    topics: list[DelayTopic]


class Health(BaseModel):
    """Health of the node."""

    status: Literal["ok"]
