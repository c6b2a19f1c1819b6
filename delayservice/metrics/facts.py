"""Facts about a node that are exported as metrics and shown as its status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from delayservice.engine.census import TopicCounts
from delayservice.metrics.counts import (
    AuditFacts,
    Counters,
    PauseFacts,
    ReconcileFacts,
    SliceMetrics,
    WorkerMetrics,
)


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One worker process."""

    worker: int
    pid: int
    restarts: int
    silent_s: float
    disk_used_percent: float = 0.0
    cpu_ratio: float | None = None
    memory_bytes: int = 0
    turn_ms_p99: int | None = None


@dataclass(frozen=True, slots=True)
class SliceFacts:
    """One slice as its worker last reported it; the cursor's age is as of now."""

    worker: int
    metrics: SliceMetrics
    cursor_age_s: float


class Unelectable(NamedTuple):
    """The slices that a worker may not own, and why.

    Attributes:
        worker: which one.
        slice: one that it has a copy of; None: all of them.
        cause: one of ``core.electability.Cause``.
        reason: the same for people, one sentence.
    """

    worker: int
    slice: int | None
    cause: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node at one moment; ``totals`` by slice, since the node started."""

    node_id: str
    version: str
    workers: Sequence[ProcessFacts]
    slices: Sequence[SliceFacts]
    totals: dict[int, Counters]
    audit: AuditFacts | None = None
    restarts: Mapping[int, int] = field(default_factory=dict)
    """How often each worker was lost, whether or not it is there now."""
    workers_missing: int = 0
    problems: Sequence[str] = ()
    """Problems that belong to no slice, one sentence each."""
    slices_there: int | None = None
    """How many slices the delay topics make; None before a worker has told."""
    topics: Mapping[str, TopicCounts] = field(default_factory=dict)
    """Records that wait in the slices that this node owns, by delay topic."""
    worker_totals: Mapping[int, WorkerMetrics] = field(default_factory=dict)
    """Counts that belong to no slice, by worker, since the node started."""
    copies: ReconcileFacts | None = None
    pauses: PauseFacts | None = None
    """None before a worker has heard what is paused."""
    topics_age_s: float | None = None
    """Time since the delay topics were last looked at with success, of the worker for which that is
    the longest; None before a worker has told."""
    unelectable: Sequence[Unelectable] = ()
