"""State of a node from which its metrics and its status are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from delayservice.engine.census import TopicCounts, largest, with_others
from delayservice.metrics.counts import (
    LATENESS_BOUNDS_MS,
    TARGETS_MAX,
    AuditFacts,
    Counters,
    Histogram,
    ReconcileFacts,
    SliceMetrics,
    WorkerMetrics,
)
from delayservice.metrics.status import PauseFacts, SliceState, TargetState, WorkerState

# Slices that the text of a problem names; further ones are only counted.
SLICES_NAMED_MAX = 10


@dataclass(frozen=True, slots=True)
class SliceReport:
    """Metrics of a slice as last reported by a worker. ``cursor_age_s``: time since the worker's
    last commit; the age of the metrics, if the cursor needed no commit.
    """

    worker: int
    metrics: SliceMetrics
    cursor_age_s: float


class Unelectable(NamedTuple):
    """A slice that a worker may not own, and why; ``slice`` None: all slices of the worker."""

    worker: int
    slice: int | None
    cause: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """State of a node at one moment. ``workers``, ``slices``: as last reported; ``totals``:
    counters by slice since the node started; ``copies``: newest comparison of the nodes' copies.
    """

    node_id: str
    version: str
    workers: Sequence[WorkerState]
    slices: Sequence[SliceReport]
    totals: dict[int, Counters]
    audit: AuditFacts | None = None
    # Number of times that each worker was lost and replaced since the node started.
    restarts: Mapping[int, int] = field(default_factory=dict)
    # Number of workers that were lost and are not back, or have not reported yet.
    workers_missing: int = 0
    # Used part of the stores' disk, by worker.
    disk_used_percent: Mapping[int, float] = field(default_factory=dict)
    # Problems of the delay topics and of the service's own topics, one sentence each.
    problems: Sequence[str] = ()
    # Number of slices of the delay topics, on all nodes; None: no worker has reported yet.
    slices_there: int | None = None
    # Of the slices that this node owns, by delay topic.
    topics: Mapping[str, TopicCounts] = field(default_factory=dict)
    # Since the node started, by worker.
    worker_totals: Mapping[int, WorkerMetrics] = field(default_factory=dict)
    copies: ReconcileFacts | None = None
    # None: the pauses topic was not read yet.
    pauses: PauseFacts | None = None
    # Since the delay topics were last read with success, of the worker for which it is longest;
    # None: no worker has reported yet.
    topics_age_s: float | None = None
    unelectable: Sequence[Unelectable] = ()
    # Why slices stay on their owners; empty: they may move.
    pinned: str = ""
    # Number of settings by which Kafka may lose what it acknowledged, found at the start.
    unsafe_settings: int | None = None


def why_not_electable(facts: NodeFacts) -> list[str]:
    """Return why the node may not own slices, a sentence for each worker or cause that names the
    slices; empty: it may own all of which it has a copy.
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


def topics_of(slices: Iterable[SliceReport]) -> dict[str, TopicCounts]:
    """Return the numbers of pending records by delay topic, summed over the slices. Target topics
    with few records are combined under ``census.OTHERS``, so that ``TARGETS_MAX`` pairs of delay
    topic and target topic have numbers of their own.
    """
    topics: dict[str, TopicCounts] = {}
    for report in slices:
        for topic, counts in report.metrics.topics.items():
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


def target_states(facts: NodeFacts) -> list[TargetState]:
    """Return the state of each pair of delay topic and target topic, most parked records first."""
    waiting = {
        (topic, target): found
        for topic, counts in facts.topics.items()
        for target, found in counts.targets.items()
    }
    together = WorkerMetrics()
    for metrics in facts.worker_totals.values():
        together.add(metrics)
    lateness = {
        (topic, target): found
        for topic, targets in together.targets.items()
        for target, found in targets.items()
    }
    states = []
    for pair in waiting.keys() | lateness.keys():
        topic, target = pair
        pending, parked = waiting.get(pair, (0, 0))
        late = lateness.get(pair, Histogram.empty(LATENESS_BOUNDS_MS))
        states.append(
            TargetState(
                topic=topic,
                target=target,
                pending=pending,
                parked=parked,
                delivered=sum(late.counts),
                lateness_ms_p99=late.quantile_ms(0.99, LATENESS_BOUNDS_MS),
            )
        )
    return sorted(states, key=lambda one: (-one.parked, -one.pending, one.topic, one.target))


def slice_state(report: SliceReport, totals: Counters) -> SliceState:
    metrics = report.metrics
    return SliceState(
        slice=metrics.slice,
        worker=report.worker,
        state=metrics.state,
        epoch=metrics.epoch,
        lag_s=round(metrics.lag_s, 3),
        alarm=metrics.alarm,
        pending=metrics.pending,
        ingested=totals.ingested,
        settled=totals.settled,
        oldest_due_ms=metrics.oldest_due_ms,
        cursor_age_s=round(report.cursor_age_s, 3),
        source_lag=metrics.source_lag,
        store_bytes=metrics.store_bytes,
        lateness_ms_p50=totals.lateness.quantile_ms(0.5, LATENESS_BOUNDS_MS),
        lateness_ms_p99=totals.lateness.quantile_ms(0.99, LATENESS_BOUNDS_MS),
        early=totals.early,
    )
