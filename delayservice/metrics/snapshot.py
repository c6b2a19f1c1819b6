"""Snapshot of the counts of a worker, as it travels to the supervisor."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import msgspec

from delayservice.base.errors import DelayServiceError
from delayservice.metrics.counts import (
    LATENESS_BOUNDS_MS,
    TRANSACTION_BOUNDS_MS,
    AuditFacts,
    Histogram,
    PauseFacts,
    ReconcileFacts,
    SliceMetrics,
    WorkerMetrics,
)


class _Packing(msgspec.Struct):
    """``Snapshot``, its slices packed already: each by the thread that writes it."""

    pid: int
    started_ns: int
    slices: list[msgspec.Raw]
    problems: list[str] = []
    disk_used_percent: float = 0.0
    audit: AuditFacts | None = None
    slices_there: int = 0
    pauses: PauseFacts | None = None
    topics_age_s: float = 0.0
    verdict: tuple[str, str] = ("", "")
    turn_s: float = 0.0
    worker: WorkerMetrics = msgspec.field(default_factory=WorkerMetrics)
    pinned: str = ""
    copies: ReconcileFacts | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All slices of one worker process; counters grow within one ``(pid, started_ns)``.

    Attributes:
        pid: of the process.
        started_ns: when it started, monotonic.
        packed: its slices, each by what ``encode_slice`` gave.
        problems: what a person should know that belongs to no slice, one sentence each.
        disk_used_percent: of the disk that the stores are on; 0 while they are on none.
        audit: known to one worker of a node.
        slices_there: how many slices the delay topics make, on all nodes.
        pauses: None: the worker has not heard yet what is paused.
        topics_age_s: time since the delay topics were last looked at with success, or since the
            start, seconds.
        verdict: why the worker may own no slice, as a cause and for people; empty: it may.
        turn_s: how long the present turn of its loop has lasted, seconds: what the loop reports of
            its slices is that old.
        worker: what belongs to no slice.
        pinned: why owners stay where they are; empty: they don't have to.
        copies: the newest comparison of copies; known to one worker of a node.
    """

    pid: int
    started_ns: int
    packed: Mapping[bytes, SliceMetrics]
    problems: Sequence[str] = ()
    disk_used_percent: float = 0.0
    audit: AuditFacts | None = None
    slices_there: int = 0
    pauses: PauseFacts | None = None
    topics_age_s: float = 0.0
    verdict: tuple[str, str] = ("", "")
    turn_s: float = 0.0
    worker: WorkerMetrics = field(default_factory=WorkerMetrics)
    pinned: str = ""
    copies: ReconcileFacts | None = None

    @property
    def slices(self) -> Collection[SliceMetrics]:
        """The metrics of each slice."""
        return self.packed.values()


_NOTHING: Final[Mapping[bytes, SliceMetrics]] = MappingProxyType({})
_STARTED_NS = time.monotonic_ns()
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Packing).decode
_decode_slice = msgspec.msgpack.Decoder(SliceMetrics).decode


def encode_slice(metrics: SliceMetrics) -> bytes:
    """Pack one slice for ``encode_snapshot``, in the thread that writes it: a tenth of a copy."""
    return _encode(metrics)


def encode_snapshot(
    pid: int,
    slices: Sequence[bytes],
    problems: Sequence[str] = (),
    disk_used_percent: float = 0.0,
    audit: AuditFacts | None = None,
    slices_there: int = 0,
    pauses: PauseFacts | None = None,
    topics_age_s: float = 0.0,
    verdict: tuple[str, str] = ("", ""),
    turn_s: float = 0.0,
    worker: WorkerMetrics | None = None,
    pinned: str = "",
    copies: ReconcileFacts | None = None,
) -> bytes:
    """Pack a worker's slices, each from ``encode_slice``, for ``MetricsHub.update``; ``pid`` is the
    worker's own.
    """
    packed = [msgspec.Raw(packed) for packed in slices]
    told = list(problems), disk_used_percent, audit, slices_there, pauses, topics_age_s
    more = verdict, turn_s, worker or WorkerMetrics(), pinned, copies
    return _encode(_Packing(pid, _STARTED_NS, packed, *told, *more))


def decode_snapshot(data: bytes, known: Mapping[bytes, SliceMetrics] = _NOTHING) -> Snapshot:
    """Unpack what ``encode_snapshot`` packed.

    Args:
        data: the snapshot.
        known: ``Snapshot.packed`` of the one before: a slice that has not changed since is taken
            from there, for unpacking a thousand of them costs more than all else that an idle
            supervisor does.

    Raises:
        DelayServiceError: it is no snapshot; worker and supervisor are of different versions.
    """
    try:
        packing = _decode(data)
        _check_worker(packing.worker)
        packed = {key: known.get(key) or _unpack_slice(key) for key in map(bytes, packing.slices)}
    except msgspec.DecodeError as exc:
        raise DelayServiceError(
            f"a worker sent {len(data)} bytes that are no snapshot ({exc}); restart the node, so "
            "that all its processes are of one version"
        ) from exc
    return Snapshot(
        packing.pid,
        packing.started_ns,
        packed,
        packing.problems,
        packing.disk_used_percent,
        packing.audit,
        packing.slices_there,
        packing.pauses,
        packing.topics_age_s,
        packing.verdict,
        packing.turn_s,
        packing.worker,
        packing.pinned,
        packing.copies,
    )


def _unpack_slice(packed: bytes) -> SliceMetrics:
    metrics = _decode_slice(packed)
    _check_sizes([metrics.counters.lateness], LATENESS_BOUNDS_MS)
    return metrics


def _check_worker(worker: WorkerMetrics) -> None:
    _check_sizes((worker.turns, worker.transactions), TRANSACTION_BOUNDS_MS)
    by_target = [one for targets in worker.targets.values() for one in targets.values()]
    _check_sizes([*worker.apart.values(), *by_target], LATENESS_BOUNDS_MS)


def _check_sizes(histograms: Iterable[Histogram], bounds: Sequence[int]) -> None:
    if any(len(one.counts) != len(bounds) + 1 for one in histograms):
        raise DelayServiceError(
            "a worker sent histograms with other buckets; restart the node, so that all its "
            "processes are of one version"
        )
