"""Metrics of all workers of a node, collected in the supervisor.

Counters belong to the node and never decrease while it runs: the counts of a dead worker are kept.
After a restart of the whole node they start at zero, which Prometheus detects as a
counter reset.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from delayservice import __version__
from delayservice.config.settings import Settings
from delayservice.engine.electability import WorkerFacts, electability
from delayservice.metrics.counts import TARGETS_MAX, WorkerMetrics
from delayservice.metrics.facts import (
    NodeFacts,
    Unelectable,
    target_states,
    topics_of,
    why_not_electable,
)
from delayservice.metrics.snapshot import Snapshot, decode_snapshot
from delayservice.metrics.status import NodeState, PauseFacts, SliceState, WorkerState

T = TypeVar("T")


@dataclass(slots=True)
class _Worker:
    """Last snapshot of one worker process and when it arrived, and those before it, monotonic
    seconds.
    """

    snapshot: Snapshot
    arrived_s: float
    before: tuple[WorkerMetrics, float] | None = None

    def take(self, snapshot: Snapshot, arrived_s: float) -> None:
        self.before = self.snapshot.worker, self.arrived_s
        self.snapshot = snapshot
        self.arrived_s = arrived_s

    def age_s(self, now_s: float) -> float:
        return now_s - self.arrived_s + self.snapshot.turn_s

    @property
    def cpu_ratio(self) -> float | None:
        """Used part of a core between the last two snapshots; None: there is one snapshot."""
        if self.before is None or self.arrived_s <= self.before[1]:
            return None
        metrics, arrived_s = self.before
        used_s = self.snapshot.worker.cpu_s - metrics.cpu_s
        return round(used_s / (self.arrived_s - arrived_s), 3)

    @property
    def turn_ms_p99(self) -> int | None:
        """99th percentile of the durations of the loop's iterations between the last two snapshots,
        in ms; None: there was no iteration.
        """
        turns = self.snapshot.worker.turns
        between = turns if self.before is None else turns.since(self.before[0].turns)
        return between.quantile_ms(0.99)

    def state(self, index: int, restarts: int, now_s: float, totals: WorkerMetrics) -> WorkerState:
        return WorkerState(
            worker=index,
            pid=self.snapshot.pid,
            restarts=restarts,
            silent_s=round(now_s - self.arrived_s, 3),
            cpu_ratio=self.cpu_ratio,
            memory_bytes=self.snapshot.worker.memory_bytes,
            turn_ms_p99=self.turn_ms_p99,
            transaction_ms_p99=totals.transactions.quantile_ms(0.99),
        )


class MetricsHub:
    """Collector of the workers' snapshots in the supervisor. Any thread may call any method."""

    def __init__(
        self, settings: Settings, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._node_id = settings.node.node_id
        self._workers_wanted = settings.node.workers
        self._now_s = monotonic_s
        self._started_s = monotonic_s()
        self._lock = threading.Lock()
        self._workers: dict[int, _Worker] = {}
        self._restarts: dict[int, int] = {}
        self._waits_for = ""
        # Number of settings by which Kafka may lose what it acknowledged; None: not looked at yet.
        self.unsafe_settings: int | None = None
        self._past_workers: dict[int, WorkerMetrics] = {}

    def update(self, worker_index: int, snapshot_bytes: bytes) -> None:
        """Replace the snapshot of the worker with this number by the next one, as encoded by
        ``encode_snapshot``.
        """
        with self._lock:
            known = self._workers.get(worker_index)
            packed = known.snapshot.packed if known is not None else {}
            snapshot = decode_snapshot(snapshot_bytes, packed)
            if known is None:
                self._workers[worker_index] = _Worker(snapshot, self._now_s())
                return
            known.take(snapshot, self._now_s())

    def turn_s(self, worker_index: int) -> float:
        """Return how long the loop's iteration had lasted at a worker's last report, in s; 0: the
        worker has not reported.
        """
        with self._lock:
            worker = self._workers.get(worker_index)
            return 0.0 if worker is None else worker.snapshot.turn_s

    def kafka_missing(self, why: str) -> None:
        """Set why the node waits for Kafka before it starts workers; empty: it does not wait."""
        self._waits_for = why

    def forget(self, worker_index: int) -> None:
        """Remove the snapshot of a worker process that has ended, keep its counters, and count a
        restart.

        Workers that die before their first report count as well, so that a loop of crashes is seen.
        """
        with self._lock:
            self._restarts[worker_index] = self._restarts.get(worker_index, 0) + 1
            gone = self._workers.pop(worker_index, None)
            if gone is not None:
                past = self._past_workers.setdefault(worker_index, WorkerMetrics())
                past.add(gone.snapshot.worker, TARGETS_MAX)

    def slices(self) -> list[SliceState]:
        """Return the slices that this node keeps, as last reported."""
        with self._lock:
            return self._slices(self._now_s())

    def _slices(self, now_s: float) -> list[SliceState]:
        # The age of the cursor keeps growing while a worker is silent or its loop hangs.
        return [
            replace(one, worker=index, cursor_age_s=one.cursor_age_s + worker.age_s(now_s))
            for index, worker in sorted(self._workers.items())
            for one in worker.snapshot.slices
        ]

    def facts(self) -> NodeFacts:
        with self._lock:
            now_s = self._now_s()
            workers, slices = sorted(self._workers.items()), self._slices(now_s)
            worker_totals = self._worker_totals()
            restarts = {n: self._restarts.get(n, 0) for n in range(self._workers_wanted)}
            snapshots = [worker.snapshot for worker in self._workers.values()]
            newest_first = sorted(
                self._workers.values(), key=lambda worker: worker.arrived_s, reverse=True
            )
            heard = [worker.snapshot for worker in newest_first]
            return NodeFacts(
                self._node_id,
                __version__,
                [
                    worker.state(index, self._restarts.get(index, 0), now_s, worker_totals[index])
                    for index, worker in workers
                ],
                slices,
                total_of(worker_totals.values()),
                audit=_first(one.audit for one in snapshots),
                restarts=restarts,
                workers_missing=self._workers_wanted - len(workers),
                disk_used_percent={
                    index: worker.snapshot.disk_used_percent for index, worker in workers
                },
                # Without duplicates: every worker reports the same topics.
                problems=list(dict.fromkeys(text for one in snapshots for text in one.problems)),
                slices_there=max((one.slices_there for one in snapshots), default=None),
                topics=topics_of(slices),
                worker_totals=worker_totals,
                # From the last report: every worker reads all pauses and the pin.
                pauses=_first(one.pauses for one in heard),
                copies=_first(one.copies for one in snapshots),
                topics_age_s=max((one.topics_age_s for one in snapshots), default=None),
                unelectable=[
                    found for n in range(self._workers_wanted) for found in self._unelectable(n)
                ],
                pinned=heard[0].pinned if heard else "",
                unsafe_settings=self.unsafe_settings,
            )

    def _unelectable(self, worker_index: int) -> Iterator[Unelectable]:
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
        for one in worker.snapshot.slices if worker is not None else ():
            if one.cause:
                yield Unelectable(worker_index, one.slice, one.cause, one.reason)

    def _worker_totals(self) -> dict[int, WorkerMetrics]:
        totals: dict[int, WorkerMetrics] = {}
        for number, past in self._past_workers.items():
            totals.setdefault(number, WorkerMetrics()).add(past)
        for number, worker in self._workers.items():
            # As ``forget`` will count them, so that no series ends with the process.
            totals.setdefault(number, WorkerMetrics()).add(worker.snapshot.worker, TARGETS_MAX)
        return dict(sorted(totals.items()))

    def status(self) -> NodeState:
        """Return the content of ``/status``. It is healthy if the node may own all slices of which
        it has a copy, no slice has an alarm, and there is no other problem.
        """
        facts = self.facts()
        alarms = [one for one in facts.slices if one.alarm and one.alarm != one.reason]
        problems = {
            **dict.fromkeys(why_not_electable(facts), "delayunelectable"),
            **{f"slice {one.slice}: {one.alarm}": "delayalarm" for one in alarms},
            **dict.fromkeys(facts.problems, "delaytopicnotserved"),
        }
        pauses = facts.pauses or PauseFacts([], {}, None)
        return NodeState(
            node_id=facts.node_id,
            version=facts.version,
            uptime_s=round(self._now_s() - self._started_s, 3),
            healthy=not problems,
            problems=list(problems),
            run_books=problems,
            workers=list(facts.workers),
            slices=list(facts.slices),
            paused=pauses.told,
            paused_others=sum(pauses.counts.values()) - len(pauses.told),
            ingested=facts.totals.ingested,
            settled=facts.totals.settled,
            early=facts.totals.early,
            lateness_ms_p50=facts.totals.lateness.quantile_ms(0.5),
            lateness_ms_p99=facts.totals.lateness.quantile_ms(0.99),
            targets=target_states(facts),
            pinned=facts.pinned,
        )


def total_of(parts: Iterable[WorkerMetrics]) -> WorkerMetrics:
    total = WorkerMetrics()
    for part in parts:
        total.add(part)
    return total


def _first(found: Iterable[T | None]) -> T | None:
    return next((one for one in found if one is not None), None)
