"""Problems of a node and its cluster as sentences with advice, for the web page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from delayservice.admin import models
from delayservice.metrics.facts import named_slices
from delayservice.metrics.status import NodeState, Pause, TargetState

# Lateness of the oldest undelivered record from which on a warning is shown, in ms.
BEHIND_MS: Final = 2_000

# Targets with parked records that get a warning each; all others share one.
_PARKED_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """Problem or warning about a node or the cluster. ``level`` is ``problem``: records are or will
    be late, or ``warning``: they may be. ``run_book``: its anchor in ``docs/operations.md``.
    """

    level: Literal["problem", "warning"]
    text: str
    run_book: str = ""


def findings_of(
    status: NodeState,
    cluster: models.Cluster | None,
    pauses: Sequence[Pause],
    now_ms: int,
) -> list[HealthFinding]:
    """Return all problems and warnings, problems first. ``cluster`` None: unknown now."""
    parked = [one for one in status.targets if one.parked]
    found = [HealthFinding("problem", text, book) for text, book in status.run_books.items()]
    if status.pinned:
        text = f"Owners are pinned {status.pinned}. `delayservice cluster unpin` ends it."
        found.append(HealthFinding("warning", text))
    found += [*map(_of_pause, pauses), *_of_parked(parked)]
    if cluster is not None:
        found += _of_cluster(cluster, now_ms)
    return sorted(found, key=lambda finding: finding.level)


def _of_parked(parked: Sequence[TargetState]) -> Iterator[HealthFinding]:
    told = [f"{n.parked:,} records of {n.topic} for target {n.target} are parked." for n in parked]
    others = sum(one.parked for one in parked[_PARKED_SHOWN:])
    if others:
        told[_PARKED_SHOWN:] = [f"{others:,} records for other targets are parked."]
    for text in told:
        yield HealthFinding("warning", text, "delaytargetparked")


def _of_pause(pause: Pause) -> HealthFinding:
    what = "Deliveries to" if pause.kind == "target" else "All of delay topic"
    by = f" by {pause.by}" if pause.by else ""
    why = f"{by}: {pause.reason}" if pause.reason else f"{by}, without a reason"
    are = "are" if pause.kind == "target" else "is"
    return HealthFinding("warning", f"{what} {pause.name} {are} paused{why}.", "delaypausedlong")


def _of_cluster(cluster: models.Cluster, now_ms: int) -> Iterator[HealthFinding]:
    if cluster.ownerless:
        text = f"No node owns {named_slices(cluster.ownerless)}: stored, not delivered."
        yield HealthFinding("problem", text, "delaysliceownerless")
    for node in cluster.nodes:
        if len(node.alive) < node.workers:
            text = f"Node {node.node_id}: {len(node.alive)} of {node.workers} workers live."
            yield HealthFinding("problem", text, "delayworkerlost")
    behind: dict[str, list[int]] = defaultdict(list)
    late_ms: dict[int, int] = {}
    for held in cluster.slices:
        for copy in held.copies:
            if not copy.caught_up:
                behind[copy.node].append(held.slice)
        here = held.here
        if here is not None and here.state == "owner" and here.oldest_due_ms is not None:
            late_ms[held.slice] = now_ms - here.oldest_due_ms
    for node_id, numbers in behind.items():
        text = f"{node_id} may not take over {named_slices(numbers)}."
        yield HealthFinding("warning", text, "delaybehind")
    late = [number for number, ms in late_ms.items() if ms > BEHIND_MS]
    if late:
        late_s = max(late_ms.values()) / 1_000
        text = f"Deliveries of {named_slices(late)} are up to {late_s:,.0f} s late."
        yield HealthFinding("warning", text, "delayoverdue")
