"""All metrics that a node exports to Prometheus: name, kind, labels and meaning.

``docs/metrics.md`` lists the same metrics, and a test compares both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, TypeAlias

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from delayservice.config.units import format_duration
from delayservice.engine.census import TopicCounts
from delayservice.engine.outcome import OUTCOME_NAMES
from delayservice.inspection.query import HORIZONS_MS
from delayservice.metrics.counts import (
    BOUNDS_MS,
    AuditFacts,
    Histogram,
    ReconcileFacts,
    WorkerMetrics,
)
from delayservice.metrics.facts import NodeFacts
from delayservice.metrics.status import PauseFacts, SliceState

_MS = 1_000

# Values of the labels, and a value of each metric; None adds no value.
_Row: TypeAlias = tuple[Sequence[str], Sequence[float | None]]


def export(facts: NodeFacts) -> Iterator[Metric]:
    build = {"version": facts.version, "node": facts.node_id}
    yield InfoMetricFamily("delay_build", "Version of the service and node.", value=build)
    yield from _of_node(facts)
    yield from _of_workers(facts)
    verdicts = (
        ([str(worker), "all" if number is None else str(number), cause], [1])
        for worker, number, cause, _ in facts.unelectable
    )
    yield from _families(_UNELECTABLE, ["worker", "slice", "reason"], verdicts)
    slices = (([str(one.slice)], _of_slice(one)) for one in facts.slices)
    yield from _families(_OF_SLICES, ["slice"], slices)
    yield from _of_topics(facts.topics)
    yield from _of_audit(facts.audit)
    yield from _of_copies(facts.copies)
    yield from _of_pauses(facts.pauses)
    yield from _totals(facts.totals)


def _families(
    texts: Mapping[str, str],
    labels: Sequence[str],
    rows: Iterable[_Row],
    kind: type[GaugeMetricFamily | CounterMetricFamily] = GaugeMetricFamily,
) -> Sequence[Metric]:
    """Return the metrics with these names and help texts."""
    families = [kind(name, text, labels=labels) for name, text in texts.items()]
    for named, values in rows:
        for family, value in zip(families, values, strict=True):
            if value is not None:
                family.add_metric(named, value)
    return families


_UNELECTABLE: Final = {
    "delay_unelectable": "1 while a worker may not own a slice, or any (slice all), for a reason.",
}
_OF_NODE: Final = {
    "delay_slices": "Slices that the delay topics make, on all nodes.",
    "delay_problems": "Reasons why delay topics are not served, or may lose records.",
    "delay_unsafe_settings": "Settings found at the start by which Kafka may lose records.",
    "delay_topics_age_seconds": "Time since the delay topics were last looked at with success.",
    "delay_workers_missing": "Workers that were lost and are not back, or have not reported yet.",
}
_OF_WORKERS: Final = {
    "delay_worker_silent_seconds": "Time since a worker last reported.",
    "delay_disk_used_ratio": "Used part of the disk of the stores.",
    "delay_worker_memory_bytes": "Resident memory of a worker process.",
}


def _of_node(facts: NodeFacts) -> Sequence[Metric]:
    problems, age_s = len(facts.problems), facts.topics_age_s
    values = facts.slices_there, problems, facts.unsafe_settings, age_s, facts.workers_missing
    return _families(_OF_NODE, [], [([], values)])


def _of_workers(facts: NodeFacts) -> Iterator[Metric]:
    labels, used = ["worker"], facts.disk_used_percent
    gauges: list[_Row] = [
        ([str(one.worker)], (one.silent_s, used[one.worker] / 100, one.memory_bytes))
        for one in facts.workers
    ]
    yield from _families(_OF_WORKERS, labels, gauges)
    text = "Times that a worker was lost and replaced."
    restarts = {str(worker): count for worker, count in sorted(facts.restarts.items())}
    yield _one("delay_worker_restarts", text, labels, restarts, CounterMetricFamily)
    totals = {str(worker): total for worker, total in facts.worker_totals.items()}
    cpu_s = {worker: total.cpu_s for worker, total in totals.items()}
    text = "CPU time of a worker process."
    yield _one("delay_worker_cpu_seconds", text, labels, cpu_s, CounterMetricFamily)
    text = "Time of a turn of a worker's loop, without the wait for records."
    turns = (([worker], total.turns) for worker, total in totals.items())
    yield _histogram("delay_worker_turn_seconds", text, labels, turns)
    text = "Time of a transaction, begin to commit."
    times = (([worker], total.transactions) for worker, total in totals.items())
    yield _histogram("delay_transaction_seconds", text, labels, times)


def _of_audit(audit: AuditFacts | None) -> Iterator[Metric]:
    texts = {
        "delay_audit_timestamp_seconds": "Time of the newest audit; absent before the first.",
        "delay_audit_records": "Source records that it audited.",
    }
    rows: list[_Row] = [([], (audit.at_ms / _MS, audit.records))] if audit else []
    yield from _families(texts, [], rows)
    text = "What it found, by kind; absent when all was well."
    yield _one("delay_audit_findings", text, ["kind"], audit.findings if audit else {})


_OF_COPIES: Final = {
    "delay_reconcile_timestamp_seconds": "Newest comparison of copies; absent before the first.",
    "delay_reconcile_records": "Pending records that it compared.",
    "delay_reconcile_pending": "Pending records that there were.",
    "delay_reconcile_repairs": "Copies of slices that the comparing process has rebuilt.",
    "delay_reconcile_stopped": "1 when it rebuilds no more, for their number is used up.",
}


def _of_copies(copies: ReconcileFacts | None) -> Iterator[Metric]:
    rows: list[_Row] = []
    if copies is not None:
        counts = copies.records, copies.pending, copies.repairs, copies.is_stopped
        rows = [([], (copies.at_ms / _MS, *counts))]
    yield from _families(_OF_COPIES, [], rows)
    text = "What it found, by kind; absent when all copies agree."
    yield _one("delay_reconcile_findings", text, ["kind"], copies.findings if copies else {})


def _one(
    name: str,
    text: str,
    labels: Sequence[str],
    values: Mapping[str, float],
    kind: type[GaugeMetricFamily | CounterMetricFamily] = GaugeMetricFamily,
) -> Metric:
    """Return one metric with one label, by whose values ``values`` has those of the metric."""
    rows = (([label], [value]) for label, value in sorted(values.items()))
    return _families({name: text}, labels, rows, kind)[0]


def _of_pauses(pauses: PauseFacts | None) -> Iterator[Metric]:
    told = pauses.told if pauses is not None else []
    since: list[_Row] = [((one.kind, one.name), [one.at_ms / _MS]) for one in told]
    if pauses is not None and pauses.others_at_ms is not None:
        since.append((("other", "other"), [pauses.others_at_ms / _MS]))
    text = "Since when a target or a delay topic is paused; absent when it is not."
    yield from _families({"delay_paused_timestamp_seconds": text}, ["kind", "name"], since)
    text = "How many targets and delay topics are paused."
    yield _one("delay_pauses", text, ["kind"], pauses.counts if pauses else {})


# Names and help texts of each slice's gauges; ``_of_slice`` returns their values in this order.
_OF_SLICES: Final = {
    "delay_owned": "1 while this node delivers the slice.",
    "delay_alarm": "1 while something stops or endangers delivery; see status.",
    "delay_storing_stopped": "1 while the disk is too full to store more.",
    "delay_copy_damaged": "Stretches of the copy that the last scan of the disk could not read.",
    "delay_lost_offsets": "Offsets that retention deleted before they were settled.",
    "delay_pending": "Records that wait.",
    "delay_stored_offsets": "Source offsets in the store, summed over the delay topics.",
    "delay_store_bytes": "Size of the stores.",
    "delay_oldest_due_timestamp_seconds": "Due time of the first pending record; else absent.",
    "delay_cursor_age_seconds": "Time since the last commit, or since nothing was to commit.",
    "delay_source_lag": "Source records in Kafka that are not in the store yet.",
    "delay_epoch": "Number of this node's ownership; absent while it has none.",
    "delay_replica_lag_seconds": "Lag of the copy behind the owner's; absent while unknown.",
}


def _of_slice(one: SliceState) -> tuple[float | None, ...]:
    return (
        one.state == "owner",
        bool(one.alarm),
        one.storing_stopped,
        one.damaged,
        one.lost_offsets,
        one.pending,
        one.stored,
        one.store_bytes,
        None if one.oldest_due_ms is None else one.oldest_due_ms / _MS,
        one.cursor_age_s,
        one.source_lag,
        one.epoch or None,
        one.lag_s if one.lag_s >= 0 else None,
    )


def _of_topics(topics: Mapping[str, TopicCounts]) -> Iterator[Metric]:
    due: list[_Row] = []
    targets: list[_Row] = []
    for topic, counts in sorted(topics.items()):
        for horizon_ms, count in zip(HORIZONS_MS, counts.within, strict=False):
            due.append(([topic, format_duration(horizon_ms)], [count]))
        due.append(([topic, "any"], [counts.pending]))
        targets += [
            ([topic, target], waiting) for target, waiting in sorted(counts.targets.items())
        ]
    text = "Records that wait in the slices that the node owns, and are due within a time."
    yield from _families({"delay_pending_due": text}, ["topic", "within"], due)
    yield from _families(
        {
            "delay_target_pending": "Records that wait for a target, parked ones included.",
            "delay_target_parked": "Records whose target failed, and which wait to be tried again.",
        },
        ["topic", "target"],
        targets,
    )


_COUNTS: Final = {
    "delay_ingested": "Source records read into the store.",
    "delay_early": "Deliveries before their due time; never above 0.",
    "delay_transaction_aborts": "Transactions aborted or of unknown outcome.",
    "delay_slot_full": "Records due in a second that had as many as it takes already.",
}


def _totals(totals: WorkerMetrics) -> Iterator[Metric]:
    counts = totals.ingested, totals.early, totals.aborts, totals.over_cap
    yield from _families(_COUNTS, [], [([], counts)], CounterMetricFamily)
    # From 0: increase() ignores a series' first value.
    settled = {outcome: totals.settled.get(outcome, 0) for outcome in OUTCOME_NAMES}
    text = "Records that had their one outcome."
    yield _one("delay_settled", text, ["outcome"], settled, CounterMetricFamily)
    text = "Dead letters by delay-error code."
    yield _one("delay_rejected", text, ["code"], totals.rejected, CounterMetricFamily)
    text = "Delivery time minus due time by target, of what was neither past due nor put off."
    lateness = (
        ([topic, target], late)
        for topic, targets in sorted(totals.targets.items())
        for target, late in sorted(targets.items())
    )
    labels = ["topic", "target"]
    yield _histogram("delay_lateness_seconds", text, labels, lateness)
    text = "Delivery time minus the time of writing, or that until which a record was put off."
    apart = (([kind], late) for kind, late in totals.apart.items())
    yield _histogram("delay_apart_lateness_seconds", text, ["kind"], apart)


def _histogram(
    name: str,
    text: str,
    labels: Sequence[str],
    rows: Iterable[tuple[Sequence[str], Histogram]],
) -> Metric:
    # In Prometheus' form: cumulative buckets, with bounds in s, the last infinite.
    family = HistogramMetricFamily(name, text, labels=labels)
    bounds = [*(str(bound / _MS) for bound in BOUNDS_MS), "+Inf"]
    for named, histogram in rows:
        buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
        family.add_metric(named, buckets=buckets, sum_value=histogram.sum_ms / _MS)
    return family
