"""The supervisor's side of metrics: all workers together.

Counters belong to the node and never go back while it runs: what a worker had counted when it died
is kept, per slice. A restart of the whole node starts at zero, which Prometheus understands as a
counter reset.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from delayservice import __version__
from delayservice.config.settings import Settings
from delayservice.engine.electability import WorkerFacts, electability
from delayservice.metrics.counts import (
    TRANSACTION_BOUNDS_MS,
    Counters,
    PauseFacts,
    SliceMetrics,
    WorkerMetrics,
)
from delayservice.metrics.facts import NodeFacts, ProcessFacts, SliceFacts, Unelectable
from delayservice.metrics.snapshot import Snapshot, decode_snapshot
from delayservice.metrics.status import (
    NodeState,
    Pause,
    slice_status,
    target_statuses,
    topics_of,
    why_not_electable,
    worker_status,
)


class _Worker:
    """The last two snapshots of one worker, and when they came."""

    __slots__ = ("arrived_s", "before", "snapshot")

    def __init__(self, snapshot: Snapshot, arrived_s: float) -> None:
        self.snapshot = snapshot
        self.arrived_s = arrived_s
        self.before: tuple[WorkerMetrics, float] | None = None

    def take(self, snapshot: Snapshot, arrived_s: float) -> None:
        """Take the next one."""
        self.before = self.snapshot.worker, self.arrived_s
        self.snapshot = snapshot
        self.arrived_s = arrived_s

    @property
    def cpu_ratio(self) -> float | None:
        """Part of a core between the two."""
        if self.before is None or self.arrived_s <= self.before[1]:
            return None
        metrics, arrived_s = self.before
        return (self.snapshot.worker.cpu_s - metrics.cpu_s) / (self.arrived_s - arrived_s)

    @property
    def turn_ms_p99(self) -> int | None:
        """99th percentile of the turns between the two."""
        turns = self.snapshot.worker.turns
        between = turns if self.before is None else turns.since(self.before[0].turns)
        return between.quantile_ms(0.99, TRANSACTION_BOUNDS_MS)

    def facts(self, index: int, restarts: int, now_s: float) -> ProcessFacts:
        """Return what is exported of the process."""
        return ProcessFacts(
            index,
            self.snapshot.pid,
            restarts,
            now_s - self.arrived_s,
            self.snapshot.disk_used_percent,
            self.cpu_ratio,
            self.snapshot.worker.memory_bytes,
            self.turn_ms_p99,
        )


class NodeTotals(NamedTuple):
    """Counts of all slices of a node while it ran, and the records that wait now."""

    counters: Counters
    pending: int


class MetricsHub:
    """Collects the workers' snapshots. Every method may be called by any thread."""

    def __init__(
        self, settings: Settings, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Collect for the node of ``settings``."""
        self._node_id = settings.node.node_id
        self._workers_wanted = settings.node.workers
        self._now_s = monotonic_s
        self._started_s = monotonic_s()
        self._lock = threading.Lock()
        self._workers: dict[int, _Worker] = {}
        self._restarts: dict[int, int] = {}
        self._past: dict[int, Counters] = {}
        self._waits_for = ""
        self._past_workers: dict[int, WorkerMetrics] = {}
        self._total = Counters()
        """Of all slices, dropped ones included; what changed is added, so that it never costs a
        walk over all of them."""

    def update(self, worker_index: int, snapshot_bytes: bytes) -> None:
        """Take what ``metrics.encode_snapshot`` packed.

        Raises:
            DelayServiceError: it is no snapshot of this version.
        """
        with self._lock:
            known = self._workers.get(worker_index)
            packed = known.snapshot.packed if known is not None else {}
            snapshot = decode_snapshot(snapshot_bytes, packed)
            if known is not None and _life(known.snapshot) != _life(snapshot):
                self._count_loss(worker_index)
                known = None
            self._add_to_total(known.snapshot if known is not None else None, snapshot)
            if known is None:
                self._workers[worker_index] = _Worker(snapshot, self._now_s())
                return
            self._keep_dropped(known.snapshot, snapshot)
            known.take(snapshot, self._now_s())

    def turn_s(self, worker_index: int) -> float:
        """Return how long the turn of a worker's loop had lasted when it last reported, seconds."""
        with self._lock:
            worker = self._workers.get(worker_index)
            return 0.0 if worker is None else worker.snapshot.turn_s

    def _add_to_total(self, old: Snapshot | None, new: Snapshot) -> None:
        """Add what the slices have counted since the snapshot before."""
        before = {m.slice: m.counters for m in old.slices} if old is not None else {}
        same = old.packed.keys() if old is not None else ()
        for packed in new.packed.keys() - same:
            metrics = new.packed[packed]
            earlier = before.get(metrics.slice)
            counted = metrics.counters
            self._total.add(counted if earlier is None else counted.since(earlier))

    def kafka_missing(self, why: str) -> None:
        """Note why there are no workers yet: the node waits for Kafka; empty: it does not."""
        self._waits_for = why

    def forget(self, worker_index: int) -> None:
        """Note that a worker is gone: its gauges vanish, its counters stay.

        One that dies before its first report counts as well: so it is in a loop of crashes.
        """
        with self._lock:
            self._count_loss(worker_index)

    def _count_loss(self, worker_index: int) -> None:
        self._restarts[worker_index] = self._restarts.get(worker_index, 0) + 1
        gone = self._workers.pop(worker_index, None)
        if gone is None:
            return
        self._past_workers.setdefault(worker_index, WorkerMetrics()).add(gone.snapshot.worker)
        for metrics in gone.snapshot.slices:
            self._keep(metrics)

    def _keep_dropped(self, old: Snapshot, new: Snapshot) -> None:
        """Keep the counts of slices that the worker no longer reports."""
        reported = {metrics.slice for metrics in new.slices}
        for metrics in old.slices:
            if metrics.slice not in reported:
                self._keep(metrics)

    def _keep(self, metrics: SliceMetrics) -> None:
        self._past.setdefault(metrics.slice, Counters()).add(metrics.counters)

    def totals(self) -> NodeTotals:
        """Return the totals of all slices, as of now."""
        with self._lock:
            total = Counters()
            total.add(self._total)
            workers = self._workers.values()
            pending = sum(m.pending for worker in workers for m in worker.snapshot.slices)
            return NodeTotals(total, pending)

    def facts(self) -> NodeFacts:
        """Everything that is exported, as of now."""
        with self._lock:
            now_s = self._now_s()
            live = [
                (index, metrics, now_s - worker.arrived_s + worker.snapshot.turn_s)
                for index, worker in sorted(self._workers.items())
                for metrics in worker.snapshot.slices
            ]
            totals: dict[int, Counters] = {}
            for number, past in self._past.items():
                totals.setdefault(number, Counters()).add(past)
            for _, metrics, _ in live:
                totals.setdefault(metrics.slice, Counters()).add(metrics.counters)
            workers = [
                worker.facts(index, self._restarts.get(index, 0), now_s)
                for index, worker in sorted(self._workers.items())
            ]
            snapshots = [worker.snapshot for worker in self._workers.values()]
            audit = next((one.audit for one in snapshots if one.audit is not None), None)
            copies = next((one.copies for one in snapshots if one.copies is not None), None)
            problems = dict.fromkeys(text for one in snapshots for text in one.problems)
            slices_there = max((one.slices_there for one in snapshots), default=None)
            pauses = self._newest_pauses()
            topics_age_s = max((one.topics_age_s for one in snapshots), default=None)
            unelectable = [
                found for n in range(self._workers_wanted) for found in self._unelectable(n)
            ]
            worker_totals = self._worker_totals()
        # The age of the cursor goes on growing while a worker is silent or its loop hangs.
        slices = [
            SliceFacts(index, metrics, metrics.cursor_age_s + old_s)
            for index, metrics, old_s in live
        ]
        return NodeFacts(
            self._node_id,
            __version__,
            workers,
            slices,
            totals,
            audit,
            restarts={n: self._restarts.get(n, 0) for n in range(self._workers_wanted)},
            workers_missing=self._workers_wanted - len(workers),
            problems=list(problems),  # each once: every worker sees the same topics
            slices_there=slices_there,
            topics=topics_of(slices),
            worker_totals=worker_totals,
            pauses=pauses,
            copies=copies,
            topics_age_s=topics_age_s,
            unelectable=unelectable,
        )

    def _unelectable(self, worker_index: int) -> Iterator[Unelectable]:
        """Return the slices that a worker may not own, and why: all of its slices, or some."""
        worker = self._workers.get(worker_index)
        silent_s = math.inf if worker is None else self._now_s() - worker.arrived_s
        seen = WorkerFacts(kafka=self._waits_for) if self._waits_for else WorkerFacts(silent_s)
        verdict = electability(seen)
        cause, reason = verdict.cause.value, verdict.reason
        if worker is not None and verdict.may_own:
            cause, reason = worker.snapshot.verdict
        if cause:
            yield Unelectable(worker_index, None, cause, reason)
            return
        for metrics in worker.snapshot.slices if worker is not None else ():
            if metrics.cause:
                yield Unelectable(worker_index, metrics.slice, metrics.cause, metrics.reason)

    def _worker_totals(self) -> dict[int, WorkerMetrics]:
        """Return the counts of each worker in all its lives."""
        totals: dict[int, WorkerMetrics] = {}
        for number, past in self._past_workers.items():
            totals.setdefault(number, WorkerMetrics()).add(past)
        for number, worker in self._workers.items():
            totals.setdefault(number, WorkerMetrics()).add(worker.snapshot.worker)
        return dict(sorted(totals.items()))

    def _newest_pauses(self) -> PauseFacts | None:
        """Take it from the worker that reported last: every worker hears of every pause."""
        workers = sorted(self._workers.values(), key=lambda worker: worker.arrived_s)
        heard = [one.snapshot.pauses for one in workers if one.snapshot.pauses is not None]
        return heard[-1] if heard else None

    def _newest_pin(self) -> str:
        """Take it from the worker that reported last: every worker hears of it."""
        with self._lock:
            newest = max(self._workers.values(), key=lambda one: one.arrived_s, default=None)
        return "" if newest is None else newest.snapshot.pinned

    def status(self) -> NodeState:
        """Give what ``/status`` shows. Healthy: the node may own all that it has a copy of, and
        no slice has an alarm.
        """
        facts = self.facts()
        problems = why_not_electable(facts)
        problems += [
            f"slice {s.metrics.slice}: {s.metrics.alarm}"
            for s in facts.slices
            if s.metrics.alarm and s.metrics.alarm != s.metrics.reason
        ]
        problems += facts.problems
        pauses = facts.pauses or PauseFacts([], {}, None)
        return NodeState(
            node_id=facts.node_id,
            version=facts.version,
            uptime_s=round(self._now_s() - self._started_s, 3),
            healthy=not problems,
            problems=problems,
            workers=[worker_status(w, facts.worker_totals[w.worker]) for w in facts.workers],
            slices=[slice_status(s, facts.totals[s.metrics.slice]) for s in facts.slices],
            paused=[Pause.model_validate(msgspec.to_builtins(one)) for one in pauses.told],
            paused_others=sum(pauses.counts.values()) - len(pauses.told),
            targets=target_statuses(facts),
            pinned=self._newest_pin(),
        )


def _life(snapshot: Snapshot) -> tuple[int, int]:
    return snapshot.pid, snapshot.started_ns
