"""State of a node: what `/status`, the API and `delayservice status` show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, Field

from delayservice.engine.census import TopicCounts, largest, with_others
from delayservice.metrics.counts import (
    LATENESS_BOUNDS_MS,
    TARGETS_MAX,
    TRANSACTION_BOUNDS_MS,
    Counters,
    WorkerMetrics,
)
from delayservice.metrics.facts import NodeFacts, ProcessFacts, SliceFacts, Unelectable

SLICES_NAMED_MAX = 10
"""Slices that one problem names; the others are counted."""


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
    cpu_ratio: float | None = Field(
        default=None, description="Part of a core in about the last second."
    )
    memory_bytes: int = 0
    turn_ms_p99: int | None = Field(
        default=None, description="Turns of its loop in about the last second."
    )
    transaction_ms_p99: int | None = Field(default=None, description="Since the node started.")


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
    pending: int = 0
    parked: int = Field(
        default=0, description="Those of them whose target failed: they are tried again."
    )
    delivered: int = Field(default=0, description="Since the node started, on time or late.")
    lateness_ms_p99: int | None = Field(default=None, description="Of these, an upper bound.")


class NodeState(BaseModel):
    """This node; as `/status`."""

    node_id: str
    version: str
    uptime_s: float
    healthy: bool
    problems: list[str]
    workers: list[WorkerState]
    slices: list[SliceState]
    paused: list[Pause] = Field(default=[], description="What is paused, as far as it fits.")
    paused_others: int = Field(default=0, description="How many more pauses there are.")
    targets: list[TargetState] = Field(
        default=[], description="The largest ones, most parked first."
    )
    pinned: str = Field(
        default="", description="Why owners stay where they are; empty: they need not."
    )


def why_not_electable(facts: NodeFacts) -> list[str]:
    """Return what the node may not own and why, a sentence for each cause; empty: it may own all
    that it has a copy of.
    """
    said = [f"worker {one.worker}: {one.reason}" for one in facts.unelectable if one.slice is None]
    slices: dict[str, list[Unelectable]] = {}
    for one in facts.unelectable:
        if one.slice is not None:
            slices.setdefault(one.cause, []).append(one)
    for found in slices.values():
        named = ", ".join(str(one.slice) for one in found[:SLICES_NAMED_MAX])
        more = len(found) - SLICES_NAMED_MAX
        which = f"slices {named}" if len(found) > 1 else f"slice {named}"
        said.append(f"{which}{f' and {more} more' if more > 0 else ''}: {found[0].reason}")
    return said


def topics_of(slices: Iterable[SliceFacts]) -> dict[str, TopicCounts]:
    """Add up what waits in all slices, by delay topic and target."""
    topics: dict[str, TopicCounts] = {}
    for facts in slices:
        for topic, counts in facts.metrics.topics.items():
            topics.setdefault(topic, TopicCounts(0, [], {})).add(counts)
    pairs = {
        (topic, target): waiting
        for topic, counts in topics.items()
        for target, waiting in counts.targets.items()
    }
    named = largest(pairs, TARGETS_MAX)
    for topic, counts in topics.items():
        counts.targets = with_others(counts.targets, {t for name, t in named if name == topic})
    return topics


def target_statuses(facts: NodeFacts) -> list[TargetState]:
    """Return the status of each delay topic and target, those with most parked records first."""
    found: dict[tuple[str, str], TargetState] = {}
    for topic, counts in facts.topics.items():
        for target, (pending, parked) in counts.targets.items():
            found[topic, target] = TargetState(
                topic=topic, target=target, pending=pending, parked=parked
            )
    together = WorkerMetrics()
    for metrics in facts.worker_totals.values():
        together.add(metrics)
    for topic, targets in together.targets.items():
        for target, lateness in targets.items():
            one = found.setdefault((topic, target), TargetState(topic=topic, target=target))
            one.delivered = sum(lateness.counts)
            one.lateness_ms_p99 = lateness.quantile_ms(0.99, LATENESS_BOUNDS_MS)
    return sorted(
        found.values(), key=lambda one: (-one.parked, -one.pending, one.topic, one.target)
    )


def worker_status(facts: ProcessFacts, totals: WorkerMetrics) -> WorkerState:
    """Return the status of a worker."""
    return WorkerState(
        worker=facts.worker,
        pid=facts.pid,
        restarts=facts.restarts,
        silent_s=round(facts.silent_s, 3),
        cpu_ratio=None if facts.cpu_ratio is None else round(facts.cpu_ratio, 3),
        memory_bytes=facts.memory_bytes,
        turn_ms_p99=facts.turn_ms_p99,
        transaction_ms_p99=totals.transactions.quantile_ms(0.99, TRANSACTION_BOUNDS_MS),
    )


def slice_status(facts: SliceFacts, totals: Counters) -> SliceState:
    """Return the status of a slice."""
    metrics = facts.metrics
    return SliceState(
        slice=metrics.slice,
        worker=facts.worker,
        state=metrics.state,
        epoch=metrics.epoch,
        lag_s=round(metrics.lag_s, 3),
        alarm=metrics.alarm,
        pending=metrics.pending,
        ingested=totals.ingested,
        settled=totals.settled,
        oldest_due_ms=metrics.oldest_due_ms,
        cursor_age_s=round(facts.cursor_age_s, 3),
        source_lag=metrics.source_lag,
        store_bytes=metrics.store_bytes,
        lateness_ms_p50=totals.lateness.quantile_ms(0.5, LATENESS_BOUNDS_MS),
        lateness_ms_p99=totals.lateness.quantile_ms(0.99, LATENESS_BOUNDS_MS),
        early=totals.early,
    )
