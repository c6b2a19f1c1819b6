"""Every metric that Prometheus sees: name, kind, labels and meaning.

``docs/metrics.md`` lists the same, and a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

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
    PauseFacts,
    ReconcileFacts,
    WorkerMetrics,
)
from delayservice.metrics.facts import NodeFacts, ProcessFacts, SliceFacts, Unelectable

_MS = 1_000


def export(facts: NodeFacts) -> Iterator[Metric]:
    """Turn facts into metric families."""
    yield InfoMetricFamily(
        "delay_build",
        "Version of the service and name of the node.",
        value={"version": facts.version, "node": facts.node_id},
    )
    yield from _of_node(facts)
    yield from _of_workers(facts.workers)
    yield _of_verdicts(facts.unelectable)
    yield from _gauges(facts.slices)
    yield from _of_topics(facts.topics)
    yield from _of_audit(facts.audit)
    yield from _of_copies(facts.copies)
    yield from _of_pauses(facts.pauses)
    yield from _counters(facts.totals)
    yield from _histograms(facts.totals)
    yield from _worker_totals(facts.worker_totals)
    yield from _lateness_of_targets(facts.worker_totals)


def _of_node(facts: NodeFacts) -> Iterator[Metric]:
    slices = GaugeMetricFamily("delay_slices", "Slices that the delay topics make, on all nodes.")
    if facts.slices_there is not None:
        slices.add_metric([], facts.slices_there)
    yield slices
    yield GaugeMetricFamily(
        "delay_problems",
        "Reasons why delay topics are not served, or may lose records.",
        value=len(facts.problems),
    )
    age = GaugeMetricFamily(
        "delay_topics_age_seconds",
        "Time since the delay topics were last looked at with success.",
    )
    if facts.topics_age_s is not None:
        age.add_metric([], facts.topics_age_s)
    yield age
    yield GaugeMetricFamily(
        "delay_workers_missing",
        "Workers that were lost and are not back, or have not reported yet.",
        value=facts.workers_missing,
    )
    restarts = CounterMetricFamily(
        "delay_worker_restarts", "Times that a worker was lost and replaced.", labels=["worker"]
    )
    for worker, count in sorted(facts.restarts.items()):
        restarts.add_metric([str(worker)], count)
    yield restarts


def _of_workers(workers: Sequence[ProcessFacts]) -> Iterator[Metric]:
    silent = GaugeMetricFamily(
        "delay_worker_silent_seconds", "Time since a worker last reported.", labels=["worker"]
    )
    disk = GaugeMetricFamily(
        "delay_disk_used_ratio", "Used part of the disk of the stores.", labels=["worker"]
    )
    memory = GaugeMetricFamily(
        "delay_worker_memory_bytes", "Resident memory of a worker process.", labels=["worker"]
    )
    for worker in workers:
        memory.add_metric([str(worker.worker)], worker.memory_bytes)
        disk.add_metric([str(worker.worker)], worker.disk_used_percent / 100)
        silent.add_metric([str(worker.worker)], worker.silent_s)
    yield from (silent, disk, memory)


def _of_audit(audit: AuditFacts | None) -> Iterator[Metric]:
    at = GaugeMetricFamily(
        "delay_audit_timestamp_seconds", "Time of the newest audit; absent before the first."
    )
    records = GaugeMetricFamily("delay_audit_records", "Source records that it audited.")
    found = GaugeMetricFamily(
        "delay_audit_findings", "What it found, by kind; absent when all was well.", labels=["kind"]
    )
    if audit is not None:
        at.add_metric([], audit.at_ms / _MS)
        records.add_metric([], audit.records)
        for kind, count in sorted(audit.findings.items()):
            found.add_metric([kind], count)
    yield from (at, records, found)


def _of_copies(copies: ReconcileFacts | None) -> Iterator[Metric]:
    at = GaugeMetricFamily(
        "delay_reconcile_timestamp_seconds",
        "Time of the newest comparison of copies; absent before the first.",
    )
    found = GaugeMetricFamily(
        "delay_reconcile_findings",
        "What it found, by kind; absent when all copies agree.",
        labels=["kind"],
    )
    texts = {
        "delay_reconcile_records": "Pending records that it compared.",
        "delay_reconcile_pending": "Pending records that there were.",
        "delay_reconcile_repairs": "Copies of slices that the comparing process has rebuilt.",
        "delay_reconcile_stopped": "1 when it rebuilds no more, for their number is used up.",
    }
    gauges = [GaugeMetricFamily(name, text) for name, text in texts.items()]
    if copies is not None:
        at.add_metric([], copies.at_ms / _MS)
        for kind, count in sorted(copies.findings.items()):
            found.add_metric([kind], count)
        values = copies.records, copies.pending, copies.repairs, int(copies.is_stopped)
        for gauge, value in zip(gauges, values, strict=True):
            gauge.add_metric([], value)
    yield from (at, found, *gauges)


def _of_pauses(pauses: PauseFacts | None) -> Iterator[Metric]:
    since = GaugeMetricFamily(
        "delay_paused_timestamp_seconds",
        "Since when a target or a delay topic is paused; absent when it is not.",
        labels=["kind", "name"],
    )
    count = GaugeMetricFamily(
        "delay_pauses", "How many targets and delay topics are paused.", labels=["kind"]
    )
    if pauses is not None:
        for kind, number in sorted(pauses.counts.items()):
            count.add_metric([kind], number)
        for pause in pauses.told:
            since.add_metric([pause.kind, pause.name], pause.at_ms / _MS)
        if pauses.others_at_ms is not None:
            since.add_metric(["other", "other"], pauses.others_at_ms / _MS)
    yield from (since, count)


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


class _Gauge(NamedTuple):
    """A gauge of each slice; ``value`` returns None where it is absent."""

    name: str
    help: str
    value: Callable[[SliceFacts], float | None]


_OF_SLICES: Final = (
    _Gauge(
        "delay_owned",
        "1 while this node delivers the slice.",
        lambda facts: facts.metrics.state == "owner",
    ),
    _Gauge(
        "delay_alarm",
        "1 while something stops or endangers delivery; see status.",
        lambda facts: bool(facts.metrics.alarm),
    ),
    _Gauge(
        "delay_storing_stopped",
        "1 while the disk is too full to store more.",
        lambda facts: facts.metrics.storing_stopped,
    ),
    _Gauge(
        "delay_copy_damaged",
        "Stretches of the copy that the last scan of the disk could not read.",
        lambda facts: facts.metrics.damaged,
    ),
    _Gauge(
        "delay_lost_offsets",
        "Offsets that retention deleted before they were settled, of the newest ranges.",
        lambda facts: facts.metrics.lost_offsets,
    ),
    _Gauge("delay_pending", "Records that wait.", lambda facts: facts.metrics.pending),
    _Gauge("delay_store_bytes", "Size of the stores.", lambda facts: facts.metrics.store_bytes),
    _Gauge(
        "delay_oldest_due_timestamp_seconds",
        "Due time of the first pending record; absent when nothing waits.",
        lambda facts: None if (due := facts.metrics.oldest_due_ms) is None else due / _MS,
    ),
    _Gauge(
        "delay_cursor_age_seconds",
        "Time since the cursor was committed, or was seen with nothing to commit.",
        lambda facts: facts.cursor_age_s,
    ),
    _Gauge(
        "delay_source_lag",
        "Source records in Kafka that are not in the store yet.",
        lambda facts: facts.metrics.source_lag,
    ),
    _Gauge(
        "delay_epoch",
        "Number of this node's ownership; absent while it has none.",
        lambda facts: facts.metrics.epoch or None,
    ),
    _Gauge(
        "delay_replica_lag_seconds",
        "How far the copy is behind the owner's; absent while that is not known.",
        lambda facts: lag_s if (lag_s := facts.metrics.lag_s) >= 0 else None,
    ),
)


def _gauges(slices: Sequence[SliceFacts]) -> Iterator[Metric]:
    for gauge in _OF_SLICES:
        family = GaugeMetricFamily(gauge.name, gauge.help, labels=["slice"])
        for facts in slices:
            value = gauge.value(facts)
            if value is not None:
                family.add_metric([str(facts.metrics.slice)], value)
        yield family


def _of_topics(topics: Mapping[str, TopicCounts]) -> Iterator[Metric]:
    due = GaugeMetricFamily(
        "delay_pending_due",
        "Records that wait in the slices that the node owns, and are due within a time.",
        labels=["topic", "within"],
    )
    pending = GaugeMetricFamily(
        "delay_target_pending",
        "Records that wait for a target, parked ones included.",
        labels=["topic", "target"],
    )
    parked = GaugeMetricFamily(
        "delay_target_parked",
        "Records whose target failed, and which wait to be tried again.",
        labels=["topic", "target"],
    )
    for topic, counts in sorted(topics.items()):
        for horizon_ms, count in zip(HORIZONS_MS, counts.within, strict=False):
            due.add_metric([topic, format_duration(horizon_ms)], count)
        due.add_metric([topic, "any"], counts.pending)
        for target, waiting in sorted(counts.targets.items()):
            pending.add_metric([topic, target], waiting.pending)
            parked.add_metric([topic, target], waiting.parked)
    yield from (due, pending, parked)


def _counters(totals: dict[int, Counters]) -> Iterator[Metric]:
    ingested = CounterMetricFamily(
        "delay_ingested", "Source records read into the store.", labels=["slice"]
    )
    settled = CounterMetricFamily(
        "delay_settled", "Records that had their one outcome.", labels=["slice", "outcome"]
    )
    rejected = CounterMetricFamily(
        "delay_rejected", "Dead letters by delay-error code.", labels=["slice", "code"]
    )
    early = CounterMetricFamily(
        "delay_early", "Deliveries before their due time; never above 0.", labels=["slice"]
    )
    aborts = CounterMetricFamily(
        "delay_transaction_aborts", "Transactions aborted or of unknown outcome.", labels=["slice"]
    )
    over_cap = CounterMetricFamily(
        "delay_slot_full",
        "Records due in a second that had as many as it takes already.",
        labels=["slice"],
    )
    for number, counters in sorted(totals.items()):
        at = str(number)
        over_cap.add_metric([at], counters.over_cap)
        ingested.add_metric([at], counters.ingested)
        early.add_metric([at], counters.early)
        aborts.add_metric([at], counters.aborts)
        for outcome in OUTCOME_NAMES:  # from 0 on: increase() does not see how a series begins
            settled.add_metric([at, outcome], counters.settled.get(outcome, 0))
        for code, count in sorted(counters.rejected.items()):
            rejected.add_metric([at, code], count)
    yield from (ingested, settled, rejected, early, aborts, over_cap)


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
    """Prometheus wants cumulative buckets, bounds in seconds, the last without bound."""
    total = 0
    buckets: list[tuple[str, float]] = []
    names = [*(str(bound / _MS) for bound in bounds_ms), "+Inf"]
    for name, count in zip(names, histogram.counts, strict=True):
        total += count
        buckets.append((name, total))
    family.add_metric(labels, buckets=buckets, sum_value=histogram.sum_ms / _MS)
