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
    be late, or ``warning``: they may be.
    """

    level: Literal["problem", "warning"]
    text: str
    advice: str


def findings_of(
    status: NodeState,
    cluster: models.Cluster | None,
    pauses: Sequence[Pause],
    now_ms: int,
) -> list[HealthFinding]:
    """Return all problems and warnings, problems first. ``cluster`` None: unknown now."""
    parked = [one for one in status.targets if one.parked]
    found = [*_of_node(status), *map(_of_pause, pauses), *_of_parked(parked)]
    if cluster is not None:
        found += _of_cluster(cluster, now_ms)
    return sorted(found, key=lambda finding: finding.level)


def _of_node(status: NodeState) -> Iterator[HealthFinding]:
    if status.pinned:
        yield HealthFinding(
            "warning",
            f"Owners are pinned {status.pinned}.",
            "Slices stay where they are even if other nodes are preferred. "
            "`delayservice cluster unpin` ends it.",
        )
    for text in status.problems:
        yield HealthFinding("problem", text, "See the run-book in docs/operations.md.")


def _of_parked(parked: Sequence[TargetState]) -> Iterator[HealthFinding]:
    for one in parked[:_PARKED_SHOWN]:
        yield HealthFinding(
            "warning",
            f"{one.parked:,} records of {one.topic} for target {one.target} are parked.",
            "The target is missing or can't be written to. They are tried again, and are "
            "dead-lettered after the last try: see DelayTargetParked in docs/operations.md.",
        )
    others = sum(one.parked for one in parked[_PARKED_SHOWN:])
    if others:
        yield HealthFinding(
            "warning",
            f"{others:,} records for other targets are parked.",
            "The table of targets below names them.",
        )


def _of_pause(pause: Pause) -> HealthFinding:
    what = "Deliveries to" if pause.kind == "target" else "All of delay topic"
    why = f": {pause.reason}" if pause.reason else ", without a reason"
    return HealthFinding(
        "warning",
        f"{what} {pause.name} {'are' if pause.kind == 'target' else 'is'} paused{why}.",
        f"An operator set this pause. `delayservice pause remove {pause.kind} {pause.name}` ends "
        "it.",
    )


def _of_cluster(cluster: models.Cluster, now_ms: int) -> Iterator[HealthFinding]:
    if cluster.ownerless:
        yield HealthFinding(
            "problem",
            f"No node owns {named_slices(cluster.ownerless)}: records there are stored, not "
            "delivered.",
            "A node takes over within seconds. If not, check that nodes and ZooKeeper run and "
            "that a copy has caught up.",
        )
    for node in cluster.nodes:
        if len(node.alive) < node.workers:
            yield HealthFinding(
                "problem",
                f"Node {node.node_id}: {len(node.alive)} of {node.workers} workers live.",
                "Check the log of that node.",
            )
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
        yield HealthFinding(
            "warning",
            f"{node_id} may not take over {named_slices(numbers)}.",
            "`delayservice status` on that node shows the reason. A copy catches up by itself.",
        )
    late = [number for number, ms in late_ms.items() if ms > BEHIND_MS]
    if late:
        late_s = max(late_ms.values()) / 1_000
        yield HealthFinding(
            "warning",
            f"Deliveries of {named_slices(late)} are up to {late_s:,.0f} s late.",
            "Check whether a target is throttled, rate-limited or paused, and whether the node "
            "has spare CPU.",
        )
