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

    ``writing`` is only for calls of the sink that block, so that they wait for no others. Without a
    trusted ``clock_watch`` nothing is delivered. ``contract_of`` takes delay topic and newest
    allowed contract version. ``copies_of`` takes a slice; None: digests are off. Within the context
    of ``pausing`` other threads may read the lanes. ``is_held``: an operator paused the delay
    topic. ``tended`` updates a slice's metrics about once a second while it changes, and returns
    whether to call it again in a second.
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

    # Hashes of the cluster secrets; the first secret signs.
    @property
    def fingerprints(self) -> tuple[str, ...]:
        return tuple(map(fingerprint, self.routes.secrets))
