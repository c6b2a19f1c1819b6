"""Status of a node: what `/status` shows as JSON."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from delayservice.engine.census import TopicCounts, largest, with_others
from delayservice.metrics.counts import (
    LATENESS_BOUNDS_MS,
    TARGETS_MAX,
    TRANSACTION_BOUNDS_MS,
    Counters,
    PauseFact,
    WorkerMetrics,
)
from delayservice.metrics.facts import NodeFacts, ProcessFacts, SliceFacts, Unelectable

SLICES_NAMED_MAX = 10
"""Slices that one problem names; the others are counted."""


class SliceStatus(msgspec.Struct, omit_defaults=False):
    """One slice in ``/status``."""

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


class WorkerStatus(msgspec.Struct):
    """One worker process in ``/status``.

    Attributes:
        cpu_ratio: part of a core that it took between its last two reports; None: it had one.
        turn_ms_p99: 99th percentile of its loop's turns between them, an upper bound, without the
            wait for records.
        transaction_ms_p99: of its transactions since the node started.
    """

    worker: int
    pid: int
    restarts: int
    silent_s: float
    cpu_ratio: float | None = None
    memory_bytes: int = 0
    turn_ms_p99: int | None = None
    transaction_ms_p99: int | None = None


class TargetStatus(msgspec.Struct):
    """One target in ``/status``: what waits for it in the slices that the node owns, and what was
    delivered since the node started, but for what was past due or put off.
    """

    topic: str
    target: str
    pending: int = 0
    parked: int = 0
    delivered: int = 0
    lateness_ms_p99: int | None = None


class NodeStatus(msgspec.Struct):
    """``/status``."""

    node_id: str
    version: str
    uptime_s: float
    healthy: bool
    problems: list[str]
    workers: list[WorkerStatus]
    slices: list[SliceStatus]
    paused: list[PauseFact] = []
    """Pauses that a person asked for: the node is still healthy."""
    paused_others: int = 0
    """How many more pauses there are."""
    targets: list[TargetStatus] = []
    """Those with the most records by name, the most parked ones first."""
    pinned: str = ""
    """Why owners stay where they are; empty: they don't have to."""


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


def target_statuses(facts: NodeFacts) -> list[TargetStatus]:
    """Return the status of each delay topic and target, those with most parked records first."""
    found: dict[tuple[str, str], TargetStatus] = {}
    for topic, counts in facts.topics.items():
        for target, (pending, parked) in counts.targets.items():
            found[topic, target] = TargetStatus(topic, target, pending, parked)
    together = WorkerMetrics()
    for metrics in facts.worker_totals.values():
        together.add(metrics)
    for topic, targets in together.targets.items():
        for target, lateness in targets.items():
            one = found.setdefault((topic, target), TargetStatus(topic, target))
            one.delivered = sum(lateness.counts)
            one.lateness_ms_p99 = lateness.quantile_ms(0.99, LATENESS_BOUNDS_MS)
    return sorted(
        found.values(), key=lambda one: (-one.parked, -one.pending, one.topic, one.target)
    )


def worker_status(facts: ProcessFacts, totals: WorkerMetrics) -> WorkerStatus:
    """Return the status of a worker."""
    return WorkerStatus(
        facts.worker,
        facts.pid,
        facts.restarts,
        round(facts.silent_s, 3),
        None if facts.cpu_ratio is None else round(facts.cpu_ratio, 3),
        facts.memory_bytes,
        facts.turn_ms_p99,
        totals.transactions.quantile_ms(0.99, TRANSACTION_BOUNDS_MS),
    )


def slice_status(facts: SliceFacts, totals: Counters) -> SliceStatus:
    """Return the status of a slice."""
    metrics = facts.metrics
    return SliceStatus(
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
