"""Clients, clocks, threads and settings that the worker's process passes to its loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from delayservice.base.clock import Clock, ClockWatch
from delayservice.contract.contracts import Contract
from delayservice.engine.checkpoint import fingerprint
from delayservice.engine.disk import DiskLevel
from delayservice.engine.flow import FlowRules
from delayservice.engine.ports import (
    Background,
    Checkpoints,
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
    """Clients, clocks, threads and settings of one worker's loop.

    Attributes:
        node_id: name of this node.
        source: consumer of the delay topics.
        sink: transactional producer of outputs and checkpoints.
        checkpoints: consumer of the checkpoint topic.
        succession: calls to Kafka and ZooKeeper that a take-over makes.
        background: threads for calls that block.
        writing: thread only for calls of the sink that block, so that they wait for no other calls.
        clock: wall clock and monotonic clock.
        gate: the node's role for each slice.
        clock_watch: whether the node's wall clock is trusted; without that nothing is delivered.
        observer: receives what the loop does, for metrics.
        routes: topics to which outputs are written, and the cluster secrets.
        limits: sizes, intervals and waits of the loop.
        contract_of: returns the contract that settings ask for; takes the delay topic and the
            newest contract version allowed.
        flow_rules: returns the limits of deliveries that apply to each slice.
        disk_level: returns how full the disk is.
        copies_of: returns the object that keeps the digests of a slice's copies and repairs them;
            takes the slice's number. None: digests are off.
        pausing: returns a context that surrounds the wait for records; within it other threads may
            read the lanes.
        is_held: returns whether deliveries of a delay topic are paused.
        tended: updates the metrics of a slice; it is called about once a second while the slice
            changes, less often while it is idle. Returns whether to call it again in a second.
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
    clock_watch: ClockWatch
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
        """Return a short hash of each cluster secret; the first secret is the one that signs."""
        return tuple(map(fingerprint, self.routes.secrets))
