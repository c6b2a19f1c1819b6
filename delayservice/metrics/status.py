"""State of a node as `/status`, the API and `delayservice status` show it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import field
from typing import Annotated, Final, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field
from pydantic.dataclasses import dataclass

from delayservice.engine.census import TopicCounts
from delayservice.engine.pauses import KINDS, Pauses

# Pauses shown one by one, because each is a time series in Prometheus.
PAUSES_TOLD_MAX: Final = 200
REASON_CHARS_MAX: Final = 200
# Latest start of a pause, epoch milliseconds: the end of the year 9999.
_AT_MS_MAX: Final = 253_402_300_799_999
# A legal topic name, or a pattern of topic names.
_NAME: Final = re.compile(r"[A-Za-z0-9._*?-]{1,249}")


_DESCRIBED: Final = ConfigDict(use_attribute_docstrings=True)


@dataclass(slots=True, config=_DESCRIBED)
class SliceState:
    """A slice of which this node keeps a copy."""

    # A dataclass, for msgspec packs it in the reports of workers. Only the thread of a worker's
    # loop writes it.
    slice: int
    worker: int = -1
    state: str = "replica"
    """`owner`, `replica`, or the value of `cause` if this node may not own the slice."""
    cause: str = ""
    """Why this node may not own the slice, in a word; empty: it may."""
    reason: str = ""
    """Explanation of `cause`, one sentence."""
    alarm: str = ""
    """Problem that stops or endangers delivery, one sentence; empty: no problem."""
    epoch: int = 0
    """Epoch of this node's ownership of the slice; 0: it is not the owner."""
    lag_s: float = -1.0
    """Time by which the copy is behind the owner's; negative: unknown."""
    storing_stopped: bool = False
    """Whether the disk is too full to store more."""
    damaged: int = 0
    """Number of key ranges of the copy that could not be read when all of it was read last."""
    lost_offsets: int = 0
    """Source offsets that retention deleted before they were settled, by the newest checkpoint."""
    pending: int = 0
    """Without records known to be cancelled, replaced or fired."""
    stored: int = 0
    """Stored source offsets, summed over the delay topics."""
    store_bytes: int = 0
    oldest_due_ms: int | None = None
    """Due time of the first pending record."""
    cursor_age_s: float = 0.0
    """Time since the last commit began; 0 at a copy, and if the cursor needs no commit."""
    source_lag: int = 0
    """Source records in Kafka that are not stored yet."""
    # By delay topic; empty unless this node owns the slice, so that sums over the nodes count each
    # record once.
    topics: Annotated[dict[str, TopicCounts], Field(exclude=True)] = field(default_factory=dict)


class WorkerState(BaseModel):
    """A worker process of this node."""

    model_config = _DESCRIBED

    worker: int
    pid: int
    restarts: int
    silent_s: float
    cpu_ratio: float | None
    """Used share of a core in about the last second."""
    memory_bytes: int
    turn_ms_p99: int | None
    """Turns of its loop in about the last second: 99 % took at most this time."""
    transaction_ms_p99: int | None
    """Transactions since the node started: 99 % took at most this time."""


@dataclass(frozen=True, slots=True, config=_DESCRIBED)
class Pause:
    """A pause of deliveries."""

    # A dataclass, for msgspec packs it in the reports of workers.
    kind: Literal["target", "topic"]
    """target: deliveries to a target topic; topic: all of a delay topic."""
    name: str
    """Topic name; of targets also a pattern with `*` and `?`."""
    at_ms: int
    reason: str
    by: str = ""
    """Name of the token with which it was asked for."""


class TargetState(BaseModel):
    """Records that wait for one target in the slices that this node owns."""

    model_config = _DESCRIBED

    topic: str
    """Delay topic."""
    target: str
    """Target topic; `(other)`: all without a row of their own."""
    pending: int
    parked: int
    """Pending records whose target failed: they are tried again."""
    delivered: int
    """Since the node started, on time or late."""
    lateness_ms_p99: int | None
    """Lateness that 99 % of the delivered records do not exceed."""


class NodeState(BaseModel):
    """State of this node."""

    model_config = _DESCRIBED

    node_id: str
    version: str
    uptime_s: float
    healthy: bool
    problems: list[str]
    run_books: dict[str, str]
    """By problem: the anchor of its run-book in `docs/operations.md`, and on the page below
    `/run-books/`.
    """
    workers: list[WorkerState]
    slices: list[SliceState]
    paused: list[Pause]
    """Pauses, the longest first; at most 200."""
    paused_others: int
    """Number of pauses that are not in `paused`."""
    ingested: int
    """Source records stored since the node started."""
    settled: dict[str, int]
    """Records by outcome since then."""
    early: int
    """Deliveries before their due time since then."""
    lateness_ms_p50: int | None
    """Lateness of deliveries since then, median."""
    lateness_ms_p99: int | None
    targets: list[TargetState]
    """Targets with the most records, most parked first."""
    pinned: str
    """Why slices stay on their owners; empty: they may move."""


class PauseFacts(msgspec.Struct):
    """All active pauses of deliveries."""

    # The longest pauses, longest first.
    told: list[Pause]
    # Number of all pauses by kind, ``target`` or ``topic``.
    counts: dict[str, int]
    # Start of the longest pause not in ``told``, epoch milliseconds; None: all are in ``told``.
    others_at_ms: int | None


def shown_pauses(pauses: Pauses) -> list[Pause]:
    """Return all active pauses, the longest first."""
    found = [
        Pause(
            paused.kind,
            paused.name,
            min(max(pause.at_ms, 0), _AT_MS_MAX),
            pause.reason[:REASON_CHARS_MAX],
            pause.by[:REASON_CHARS_MAX],
        )
        for paused, pause in pauses.all.items()
    ]
    return sorted(found, key=lambda pause: (pause.at_ms, pause.kind, pause.name))


def pause_facts(pauses: Pauses | None) -> PauseFacts | None:
    """Return the longest pauses, ``PAUSES_TOLD_MAX`` at most, and the number of all pauses by kind;
    None: the pauses topic has not been read yet.
    """
    if pauses is None:
        return None
    found = shown_pauses(pauses)
    told = [pause for pause in found if _NAME.fullmatch(pause.name)][:PAUSES_TOLD_MAX]
    names = {(pause.kind, pause.name) for pause in told}
    others = [pause.at_ms for pause in found if (pause.kind, pause.name) not in names]
    counts = Counter(paused.kind for paused in pauses.all)
    return PauseFacts(told, {kind: counts[kind] for kind in KINDS}, min(others, default=None))
