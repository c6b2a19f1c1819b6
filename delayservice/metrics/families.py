"""All metrics that a node exports to Prometheus: name, kind, labels and meaning.

``docs/metrics.md`` lists the same metrics, and a test compares both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

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
    LATENESS_BOUNDS_MS,
    TRANSACTION_BOUNDS_MS,
    AuditFacts,
    Counters,
    Histogram,
    ReconcileFacts,
    WorkerMetrics,
)
from delayservice.metrics.facts import NodeFacts, SliceReport, Unelectable
from delayservice.metrics.status import PauseFacts

_MS = 1_000


def export(facts: NodeFacts) -> Iterator[Metric]:
    yield InfoMetricFamily(
        "delay_build",
        "Version of the service and name of the node.",
        value={"version": facts.version, "node": facts.node_id},
    )
    yield from _of_node(facts)
    yield from _of_workers(facts)
    yield _of_verdicts(facts.unelectable)
    slices = _gauges(["slice"], _OF_SLICES)
    yield from _filled(slices, [([str(r.metrics.slice)], _of_slice(r)) for r in facts.slices])
    yield from _of_topics(facts.topics)
    yield from _of_audit(facts.audit)
    yield from _of_copies(facts.copies)
    yield from _of_pauses(facts.pauses)
    yield from _counters(facts.totals)
    yield from _histograms(facts.totals)
    yield from _worker_totals(facts.worker_totals)
    yield from _lateness_of_targets(facts.worker_totals)


def _gauges(labels: Sequence[str], texts: Mapping[str, str]) -> list[GaugeMetricFamily]:
    return [GaugeMetricFamily(name, text, labels=labels) for name, text in texts.items()]


def _of_node(facts: NodeFacts) -> Iterator[Metric]:
    gauges = _gauges(
        [],
        {
            "delay_slices": "Slices that the delay topics make, on all nodes.",
            "delay_problems": "Reasons why delay topics are not served, or may lose records.",
            "delay_unsafe_settings": "Settings by which Kafka may lose what it acknowledged, "
            "found at the start.",
            "delay_topics_age_seconds": "Time since the delay topics were last looked at with "
            "success.",
            "delay_workers_missing": "Workers that were lost and are not back, or have not "
            "reported yet.",
        },
    )
    values = (
        facts.slices_there,
        len(facts.problems),
        facts.unsafe_settings,
        facts.topics_age_s,
        facts.workers_missing,
    )
    yield from _filled(gauges, [([], values)])
    restarts = CounterMetricFamily(
        "delay_worker_restarts", "Times that a worker was lost and replaced.", labels=["worker"]
    )
    for worker, count in sorted(facts.restarts.items()):
        restarts.add_metric([str(worker)], count)
    yield restarts


def _filled(
    gauges: Sequence[GaugeMetricFamily],
    rows: Iterable[tuple[Sequence[str], Sequence[float | None]]],
) -> Sequence[Metric]:
    # None adds no value.
    for labels, values in rows:
        for gauge, value in zip(gauges, values, strict=True):
            if value is not None:
                gauge.add_metric(labels, value)
    return gauges


def _of_workers(facts: NodeFacts) -> Sequence[Metric]:
    gauges = _gauges(
        ["worker"],
        {
            "delay_worker_silent_seconds": "Time since a worker last reported.",
            "delay_disk_used_ratio": "Used part of the disk of the stores.",
            "delay_worker_memory_bytes": "Resident memory of a worker process.",
        },
    )
    rows = [
        (
            [str(one.worker)],
            (one.silent_s, facts.disk_used_percent[one.worker] / 100, one.memory_bytes),
        )
        for one in facts.workers
    ]
    return _filled(gauges, rows)


def _of_audit(audit: AuditFacts | None) -> Iterator[Metric]:
    gauges = _gauges(
        [],
        {
            "delay_audit_timestamp_seconds": "Time of the newest audit; absent before the first.",
            "delay_audit_records": "Source records that it audited.",
        },
    )
    yield from _filled(gauges, [([], (audit.at_ms / _MS, audit.records))] if audit else [])
    yield _by_kind(
        "delay_audit_findings",
        "What it found, by kind; absent when all was well.",
        audit.findings if audit else {},
    )


def _of_copies(copies: ReconcileFacts | None) -> Iterator[Metric]:
    gauges = _gauges(
        [],
        {
            "delay_reconcile_timestamp_seconds": "Time of the newest comparison of copies; absent "
            "before the first.",
            "delay_reconcile_records": "Pending records that it compared.",
            "delay_reconcile_pending": "Pending records that there were.",
            "delay_reconcile_repairs": "Copies of slices that the comparing process has rebuilt.",
            "delay_reconcile_stopped": "1 when it rebuilds no more, for their number is used up.",
        },
    )
    if copies is not None:
        counts = copies.records, copies.pending, copies.repairs, copies.is_stopped
        _filled(gauges, [([], (copies.at_ms / _MS, *counts))])
    yield from gauges
    yield _by_kind(
        "delay_reconcile_findings",
        "What it found, by kind; absent when all copies agree.",
        copies.findings if copies else {},
    )


def _by_kind(name: str, text: str, counts: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["kind"])
    for kind, count in sorted(counts.items()):
        family.add_metric([kind], count)
    return family


def _of_pauses(pauses: PauseFacts | None) -> Iterator[Metric]:
    since = GaugeMetricFamily(
        "delay_paused_timestamp_seconds",
        "Since when a target or a delay topic is paused; absent when it is not.",
        labels=["kind", "name"],
    )
    for pause in pauses.told if pauses else ():
        since.add_metric([pause.kind, pause.name], pause.at_ms / _MS)
    if pauses is not None and pauses.others_at_ms is not None:
        since.add_metric(["other", "other"], pauses.others_at_ms / _MS)
    yield since
    yield _by_kind(
        "delay_pauses",
        "How many targets and delay topics are paused.",
        pauses.counts if pauses else {},
    )


def _of_verdicts(unelectable: Sequence[Unelectable]) -> Metric:
    found = GaugeMetricFamily(
        "delay_unelectable",
        "1 while a worker may not own a slice, or any (slice all), for a reason.",
        labels=["worker", "slice", "reason"],
    )
    for one in unelectable:
        slice_ = "all" if one.slice is None else str(one.slice)
        found.add_metric([str(one.worker), slice_, one.cause], 1)
    return found


# Names and help texts of each slice's gauges; ``_of_slice`` returns their values in this order.
_OF_SLICES: Final = {
    "delay_owned": "1 while this node delivers the slice.",
    "delay_alarm": "1 while something stops or endangers delivery; see status.",
    "delay_storing_stopped": "1 while the disk is too full to store more.",
    "delay_copy_damaged": "Stretches of the copy that the last scan of the disk could not read.",
    "delay_lost_offsets": "Offsets that retention deleted before they were settled, of the newest "
    "ranges.",
    "delay_pending": "Records that wait.",
    "delay_store_bytes": "Size of the stores.",
    "delay_oldest_due_timestamp_seconds": "Due time of the first pending record; absent when "
    "nothing waits.",
    "delay_cursor_age_seconds": "Time since the cursor was committed, or was seen with nothing to "
    "commit.",
    "delay_source_lag": "Source records in Kafka that are not in the store yet.",
    "delay_epoch": "Number of this node's ownership; absent while it has none.",
    "delay_replica_lag_seconds": "How far the copy is behind the owner's; absent while that is "
    "not known.",
}


def _of_slice(report: SliceReport) -> tuple[float | None, ...]:
    metrics = report.metrics
    return (
        metrics.state == "owner",
        bool(metrics.alarm),
        metrics.storing_stopped,
        metrics.damaged,
        metrics.lost_offsets,
        metrics.pending,
        metrics.store_bytes,
        None if metrics.oldest_due_ms is None else metrics.oldest_due_ms / _MS,
        report.cursor_age_s,
        metrics.source_lag,
        metrics.epoch or None,
        metrics.lag_s if metrics.lag_s >= 0 else None,
    )


def _of_topics(topics: Mapping[str, TopicCounts]) -> Iterator[Metric]:
    due = GaugeMetricFamily(
        "delay_pending_due",
        "Records that wait in the slices that the node owns, and are due within a time.",
        labels=["topic", "within"],
    )
    targets = _gauges(
        ["topic", "target"],
        {
            "delay_target_pending": "Records that wait for a target, parked ones included.",
            "delay_target_parked": "Records whose target failed, and which wait to be tried again.",
        },
    )
    for topic, counts in sorted(topics.items()):
        for horizon_ms, count in zip(HORIZONS_MS, counts.within, strict=False):
            due.add_metric([topic, format_duration(horizon_ms)], count)
        due.add_metric([topic, "any"], counts.pending)
        _filled(targets, [([topic, target], n) for target, n in sorted(counts.targets.items())])
    yield from (due, *targets)


# The counters of each slice that have no label but ``slice``.
_COUNTS: Final = {
    "delay_ingested": "Source records read into the store.",
    "delay_early": "Deliveries before their due time; never above 0.",
    "delay_transaction_aborts": "Transactions aborted or of unknown outcome.",
    "delay_slot_full": "Records due in a second that had as many as it takes already.",
}


def _counters(totals: dict[int, Counters]) -> Iterator[Metric]:
    counts = [CounterMetricFamily(name, text, labels=["slice"]) for name, text in _COUNTS.items()]
    settled = CounterMetricFamily(
        "delay_settled", "Records that had their one outcome.", labels=["slice", "outcome"]
    )
    rejected = CounterMetricFamily(
        "delay_rejected", "Dead letters by delay-error code.", labels=["slice", "code"]
    )
    for number, counters in sorted(totals.items()):
        at = str(number)
        values = counters.ingested, counters.early, counters.aborts, counters.over_cap
        for family, value in zip(counts, values, strict=True):
            family.add_metric([at], value)
        for outcome in OUTCOME_NAMES:  # from 0: increase() ignores a series' first value
            settled.add_metric([at, outcome], counters.settled.get(outcome, 0))
        for code, count in sorted(counters.rejected.items()):
            rejected.add_metric([at, code], count)
    yield from (*counts, settled, rejected)


def _histograms(totals: dict[int, Counters]) -> Iterator[Metric]:
    lateness = HistogramMetricFamily(
        "delay_lateness_seconds",
        "Delivery time minus due time, of what was neither past due nor put off.",
        labels=["slice"],
    )
    for number, counters in sorted(totals.items()):
        _add(lateness, [str(number)], counters.lateness, LATENESS_BOUNDS_MS)
    yield lateness


def _worker_totals(totals: Mapping[int, WorkerMetrics]) -> Iterator[Metric]:
    labels = ["worker"]
    cpu = CounterMetricFamily(
        "delay_worker_cpu_seconds", "CPU time of a worker process.", labels=labels
    )
    turns = HistogramMetricFamily(
        "delay_worker_turn_seconds",
        "Time of a turn of a worker's loop, without the wait for records.",
        labels=labels,
    )
    times = HistogramMetricFamily(
        "delay_transaction_seconds", "Time of a transaction, begin to commit.", labels=labels
    )
    for number, metrics in totals.items():
        at = [str(number)]
        cpu.add_metric(at, metrics.cpu_s)
        _add(turns, at, metrics.turns, TRANSACTION_BOUNDS_MS)
        _add(times, at, metrics.transactions, TRANSACTION_BOUNDS_MS)
    yield from (cpu, turns, times)


def _lateness_of_targets(totals: Mapping[int, WorkerMetrics]) -> Iterator[Metric]:
    targets = HistogramMetricFamily(
        "delay_target_lateness_seconds",
        "Delivery time minus due time by target, of what was neither past due nor put off.",
        labels=["topic", "target"],
    )
    apart = HistogramMetricFamily(
        "delay_apart_lateness_seconds",
        "Delivery time minus the time of writing, or that until which a record was put off.",
        labels=["kind"],
    )
    together = WorkerMetrics()
    for metrics in totals.values():
        together.add(metrics)
    for topic, by_target in sorted(together.targets.items()):
        for target, lateness in sorted(by_target.items()):
            _add(targets, [topic, target], lateness, LATENESS_BOUNDS_MS)
    for kind, lateness in together.apart.items():
        _add(apart, [kind], lateness, LATENESS_BOUNDS_MS)
    yield from (targets, apart)


def _add(
    family: HistogramMetricFamily, labels: list[str], histogram: Histogram, bounds_ms: Sequence[int]
) -> None:
    # In Prometheus' form: cumulative buckets, with bounds in s, the last infinite.
    total = 0
    buckets: list[tuple[str, float]] = []
    names = [*(str(bound / _MS) for bound in bounds_ms), "+Inf"]
    for name, count in zip(names, histogram.counts, strict=True):
        total += count
        buckets.append((name, total))
    family.add_metric(labels, buckets=buckets, sum_value=histogram.sum_ms / _MS)
