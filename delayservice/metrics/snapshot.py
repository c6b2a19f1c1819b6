"""Snapshot of a worker's metrics, and its encoding for the supervisor."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from delayservice.base.errors import DelayServiceError
from delayservice.metrics.counts import BOUNDS_MS, AuditFacts, ReconcileFacts, WorkerMetrics
from delayservice.metrics.status import PauseFacts, SliceState


class Snapshot(msgspec.Struct):
    """Metrics of one worker process, and the state of all its slices. Counters only grow."""

    pid: int
    # Problems of the whole worker for people, one sentence each.
    problems: list[str] = []
    # Used part of the stores' disk; 0: the stores are in memory.
    disk_used_percent: float = 0.0
    # Result of the newest audit; only one worker of a node knows it, as for ``copies``.
    audit: AuditFacts | None = None
    # Number of slices of the delay topics, on all nodes.
    slices_there: int = 0
    # Active pauses; None: not read yet.
    pauses: PauseFacts | None = None
    # Time since the delay topics were last read with success, or since the start.
    topics_age_s: float = 0.0
    # Why the worker may not own any slice: the cause, and a sentence for people. Empty: it may.
    verdict: tuple[str, str] = ("", "")
    # Time for which the current iteration of its loop has lasted; the metrics of its slices are
    # that old.
    turn_s: float = 0.0
    worker: WorkerMetrics = msgspec.field(default_factory=WorkerMetrics)
    # Why slices stay on their owners; empty: they may move.
    pinned: str = ""
    copies: ReconcileFacts | None = None
    # State of its slices, by the bytes of ``encode_slice``; ``decode_snapshot`` fills it in.
    packed: dict[bytes, SliceState] = {}

    @property
    def slices(self) -> Collection[SliceState]:
        return self.packed.values()


_RESTART: Final = "restart the node, so that all its processes are of one version"
_NOTHING: Final[Mapping[bytes, SliceState]] = MappingProxyType({})
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[Snapshot, list[msgspec.Raw]]).decode
_decode_slice = msgspec.msgpack.Decoder(SliceState).decode


def encode_slice(state: SliceState) -> bytes:
    # For other threads, bytes are cheaper than a copy.
    return _encode(state)


def encode_snapshot(snapshot: Snapshot, slices: Iterable[bytes] = ()) -> bytes:
    """Return a worker's snapshot encoded for ``MetricsHub.update``. ``slices``: results of
    ``encode_slice``; ``snapshot.packed`` must be empty.
    """
    return _encode((snapshot, [msgspec.Raw(packed) for packed in slices]))


def decode_snapshot(data: bytes, known: Mapping[bytes, SliceState] = _NOTHING) -> Snapshot:
    """Return the snapshot that ``encode_snapshot`` encoded. Raises ``DelayServiceError`` if worker
    and supervisor have different versions.

    ``known`` is ``packed`` of the worker's last snapshot. A slice that has not changed since is
    taken from there, because decoding a thousand slices costs more than all else that an idle
    supervisor does.
    """
    try:
        snapshot, slices = _decode(data)
        snapshot.packed = {key: known.get(key) or _decode_slice(key) for key in map(bytes, slices)}
    except msgspec.DecodeError as exc:
        raise DelayServiceError(
            f"a worker sent {len(data)} bytes that are no snapshot ({exc}); {_RESTART}"
        ) from exc
    if any(len(one.counts) != len(BOUNDS_MS) + 1 for one in snapshot.worker.histograms):
        raise DelayServiceError(f"a worker sent histograms with other buckets; {_RESTART}")
    return snapshot
