"""Clients, clocks, threads and settings of a worker's loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from delayservice.contract.contracts import Contract
from delayservice.engine.checkpoint import fingerprint
from delayservice.engine.disk import DiskLevel
from delayservice.engine.flow import FlowRules
from delayservice.engine.ports import (
    Background,
    Checkpoints,
    Clock,
    Gate,
    Observer,
    Sink,
    Source,
    Succession,
)
from delayservice.engine.routes import Routes
from delayservice.slices.copies import CopyKeeper
from delayservice.slices.limits import Limits
from delayservice.slices.slice import Slice


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """The edges of one loop.

    Attributes:
        node_id: this node.
        source: the logs of the delay topics.
        sink: the transactional writer.
        checkpoints: checkpoints as they are read back.
        succession: what a take-over asks of Kafka and the ensemble.
        background: threads for calls that wait.
        writing: one thread for the writer, whose calls must not queue behind others.
        clock: wall clock and monotonic clock.
        gate: the ensemble: roles, and whether the clock is in doubt.
        observer: metrics.
        routes: where outcomes go.
        limits: how much is done at once.
        contract_of: returns the contract that settings ask for, by delay topic and newest version
            that may be used.
        flow_rules: returns the limits of a slice.
        disk_level: returns how full the disk is.
        copies_of: returns what compares and repairs a slice's copies; None: nothing does.
        pausing: surrounds the wait for records, while other threads may look at the lanes.
        is_held: returns whether deliveries of a delay topic are paused.
        tended: takes a slice for its metrics, about once a second after something happened to it,
            else now and then; returns whether to do so again soon.
    """

    node_id: str
    source: Source
    sink: Sink
    checkpoints: Checkpoints
    succession: Succession
    background: Background
    writing: Background
    clock: Clock
    gate: Gate
    observer: Observer
    routes: Routes
    limits: Limits
    contract_of: Callable[[str, int], Contract]
    flow_rules: Callable[[], FlowRules] = FlowRules
    disk_level: Callable[[], DiskLevel] = lambda: DiskLevel.ROOM
    copies_of: Callable[[int], CopyKeeper | None] = lambda _: None
    pausing: Callable[[], AbstractContextManager[None]] = nullcontext
    is_held: Callable[[str], bool] = lambda _: False
    tended: Callable[[Slice], bool] = lambda _: False

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Fingerprints of the secrets that verify copies; the first one signs them."""
        return tuple(map(fingerprint, self.routes.secrets))
