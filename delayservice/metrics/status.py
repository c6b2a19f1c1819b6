"""State of a node: what `/status`, the API and `delayservice status` show."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field
from pydantic.dataclasses import dataclass


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


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of deliveries."""

    # A dataclass, for msgspec packs it in the reports of workers.
    kind: Annotated[
        Literal["target", "topic"],
        Field(description="target: deliveries to a target topic; topic: all of a delay topic."),
    ]
    name: Annotated[str, Field(description="The topic; of targets, `*` and `?` stand for any.")]
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
    paused_others: int = Field(description="How many more pauses there are.")
    targets: list[TargetState] = Field(description="The largest ones, most parked first.")
    pinned: str = Field(description="Why owners stay where they are; empty: they need not.")
