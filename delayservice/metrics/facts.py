"""State of a node from which its metrics and its status are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from delayservice.engine.census import TopicCounts, largest, with_others
from delayservice.metrics.counts import (
    TARGETS_MAX,
    AuditFacts,
    Histogram,
    ReconcileFacts,
    WorkerMetrics,
)
from delayservice.metrics.status import PauseFacts, SliceState, TargetState, WorkerState

# Slices that the text of a problem names; further ones are only counted.
SLICES_NAMED_MAX = 10


class Unelectable(NamedTuple):
    """A slice that a worker may not own, and why; ``slice`` None: all slices of the worker."""

    worker: int
    slice: int | None
    cause: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """State of a node at one moment. ``workers``, ``slices``: as last reported; ``totals``:
    counters of all workers since the node started; ``copies``: newest comparison of the nodes'
    copies.
    """

    node_id: str
    version: str
    workers: Sequence[WorkerState]
    slices: Sequence[SliceState]
    totals: WorkerMetrics
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
    return said + [
        f"{named_slices([one.slice or 0 for one in found])}: {found[0].reason}"
        for found in slices.values()
    ]


def named_slices(numbers: Sequence[int]) -> str:
    """Return ``slice 3``, or ``slices 1, 2 and 5 more``."""
    named = ", ".join(map(str, numbers[:SLICES_NAMED_MAX]))
    more = len(numbers) - SLICES_NAMED_MAX
    which = f"slices {named}" if len(numbers) > 1 else f"slice {named}"
    return f"{which} and {more} more" if more > 0 else which


def topics_of(slices: Iterable[SliceState]) -> dict[str, TopicCounts]:
    """Return the numbers of pending records by delay topic, summed over the slices. Target topics
    with few records are combined under ``census.OTHERS``, so that ``TARGETS_MAX`` pairs of delay
    topic and target topic have numbers of their own.
    """
    topics: dict[str, TopicCounts] = {}
    for one in slices:
        for topic, counts in one.topics.items():
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
    lateness = facts.totals.targets
    delivered_to = {(topic, target) for topic, found in lateness.items() for target in found}
    states = []
    for topic, target in waiting.keys() | delivered_to:
        pending, parked = waiting.get((topic, target), (0, 0))
        late = lateness.get(topic, {}).get(target, Histogram())
        states.append(
            TargetState(
                topic=topic,
                target=target,
                pending=pending,
                parked=parked,
                delivered=sum(late.counts),
                lateness_ms_p99=late.quantile_ms(0.99),
            )
        )
    return sorted(states, key=lambda one: (-one.parked, -one.pending, one.topic, one.target))
