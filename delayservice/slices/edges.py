"""Clients, clocks, threads, settings and limits that the worker's process passes to its loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from delayservice.base.clock import Clock, ClockWatch
from delayservice.config.settings import Settings
from delayservice.contract.contracts import Contract
from delayservice.engine.checkpoint import fingerprint
from delayservice.engine.disk import DiskLevel
from delayservice.engine.flow import FlowRules
from delayservice.engine.outcome import Routes
from delayservice.engine.ports import (
    Background,
    Checkpoints,
    Observer,
    OwnershipView,
    Sink,
    Source,
    TakeOverClient,
)
from delayservice.slices.copies import CopyKeeper


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes, intervals and waits of one worker's loop."""

    poll_records: int = 4_000
    # Outputs, shared by all shards with due records; beyond it a commit does not wait for its
    # interval.
    transaction_records: int = 20_000
    transaction_bytes: int = 32 << 20
    transaction_interval_ms_min: float = 10.0
    transaction_interval_ms_max: float = 100.0
    # True: outputs become visible with the commit (exactly once). False: when they are written.
    visible_at_commit: bool = True
    # Time between commits that only move cursors; less if storing has to wait. If such a commit is
    # lost, a few records are read again.
    cursor_interval_ms: float = 500.0
    # Wait for records when nothing is due. Roles and the end of the process wake the loop; other
    # changes, such as the disk level, are noticed after this time.
    idle_wait_ms: int = 600
    # Least time between two rounds in which the newest checkpoints are applied.
    follow_s: float = 0.2
    # Time between two updates of digests and metrics of changed slices.
    tend_s: float = 1.0
    # Time between two syncs of the stores. A restart reads the log from the last synced offset on,
    # which must not become older than the log's retention.
    sync_s: float = 60.0
    # Pause before a failed slice is claimed again, or log ends are queried again.
    rest_s: float = 1.0


def limits_of(settings: Settings) -> Limits:
    """Return the limits of one worker's loop; workers share ``delivery.transactions_per_s_max``.

    In at-least-once mode a transaction carries only cursors, and nothing is settled during its
    commit. So it is committed at the longest interval.
    """
    delivery = settings.delivery
    visible_at_commit = delivery.mode == "exactly_once"
    budget_ms = 1000 * settings.node.workers / delivery.transactions_per_s_max
    interval_ms_max = max(delivery.transaction_interval_ms_max, budget_ms)
    interval_ms_min = max(delivery.transaction_interval_ms_min, budget_ms)
    return Limits(
        transaction_records=delivery.batch_records_max,
        transaction_bytes=int(delivery.batch_bytes_max),
        visible_at_commit=visible_at_commit,
        transaction_interval_ms_min=interval_ms_min if visible_at_commit else interval_ms_max,
        transaction_interval_ms_max=interval_ms_max,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """Clients, clocks, threads and settings of one worker's loop.

    ``writing`` is only for calls of the sink that block, and ``reading`` for logs that are read
    again, so that other calls do not wait for them. Without a trusted ``clock_watch`` nothing
    is delivered. ``contract_of`` takes delay topic and newest allowed contract version.
    ``partitions_of`` a delay topic: how many it has now; None: settings say where ids live.
    ``copies_of`` takes a slice; None: digests are off. Within the context of ``pausing`` other
    threads may read the lanes. ``is_held``: an operator paused the delay topic.
    """

    node_id: str
    source: Source
    sink: Sink
    checkpoints: Checkpoints
    take_over_client: TakeOverClient
    background: Background
    reading: Background
    writing: Background
    clock: Clock
    gate: OwnershipView
    clock_watch: ClockWatch
    observer: Observer
    routes: Routes
    limits: Limits
    contract_of: Callable[[str, int], Contract]
    partitions_of: Callable[[str], int] | None = None
    flow_rules: Callable[[], FlowRules] = FlowRules
    disk_level: Callable[[], DiskLevel] = lambda: DiskLevel.ROOM
    copies_of: Callable[[int], CopyKeeper | None] = lambda _: None
    pausing: Callable[[], AbstractContextManager[None]] = nullcontext
    is_held: Callable[[str], bool] = lambda _: False

    # Hashes of the cluster secrets; the first secret signs.
    @property
    def fingerprints(self) -> tuple[str, ...]:
        return tuple(map(fingerprint, self.routes.secrets))
