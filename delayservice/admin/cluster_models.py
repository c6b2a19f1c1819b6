"""State of the node and of the cluster, as the API gives it in JSON."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class Node(BaseModel):
    """A node of the cluster."""

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


class SliceState(BaseModel):
    """A slice of this node; as in `/status`."""

    slice: int
    worker: int
    state: str
    epoch: int
    lag_s: float
    alarm: str
    pending: int
    ingested: int
    settled: dict[str, int]
    oldest_due_ms: int | None
    cursor_age_s: float
    source_lag: int
    store_bytes: int
    lateness_ms_p50: int | None
    lateness_ms_p99: int | None
    early: int


class WorkerState(BaseModel):
    """A worker process of this node."""

    worker: int
    pid: int
    restarts: int
    silent_s: float
    cpu_ratio: float | None = Field(description="Part of a core in about the last second.")
    memory_bytes: int
    turn_ms_p99: int | None = Field(description="Turns of its loop in about the last second.")
    transaction_ms_p99: int | None = Field(description="Since the node started.")


class Pause(BaseModel):
    """A pause of deliveries."""

    kind: Literal["target", "topic"] = Field(
        description="target: deliveries to a target topic; topic: all of a delay topic."
    )
    name: str = Field(description="The topic; of targets, `*` and `?` stand for any.")
    at_ms: int
    reason: str


class TargetState(BaseModel):
    """Records that wait for one target in the slices that this node owns."""

    topic: str = Field(description="Delay topic.")
    target: str = Field(description="Target topic; `(other)`: all without a row of their own.")
    pending: int
    parked: int = Field(description="Those of them whose target failed: they are tried again.")
    delivered: int = Field(description="Since the node started, on time or late.")
    lateness_ms_p99: int | None = Field(description="Of these, an upper bound.")


class NodeState(BaseModel):
    """This node; as `/status`."""

    node_id: str
    version: str
    uptime_s: float
    healthy: bool
    problems: list[str]
    workers: list[WorkerState]
    slices: list[SliceState]
    paused: list[Pause] = Field(description="What is paused, as far as it fits.")
    paused_others: int = Field(description="So much more is paused.")
    targets: list[TargetState] = Field(description="The largest ones, most parked first.")
    pinned: str = Field(description="Why owners stay where they are; empty: they need not.")


class Sample(BaseModel):
    """Counts of about one second."""

    at_ms: int
    seconds: float
    ingested: int
    delivered: int
    settled: int
    pending: int
    lateness_ms_p50: int | None
    lateness_ms_p99: int | None


class Health(BaseModel):
    """Health of the node."""

    status: Literal["ok"]
