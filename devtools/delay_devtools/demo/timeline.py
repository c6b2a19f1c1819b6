"""Owners of each slice over time, from the nodes' logs and the demo's faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from delay_devtools.nodes import FENCED, LOST, SliceEvent, SliceOwnership

INSIDE: Final = "in an open transaction"


class Deed(StrEnum):
    KILL = "killed"
    FREEZE = "frozen"
    RESTART = "restarted"


class Ending(StrEnum):
    """Way in which a frozen node learned after its resumption that others own its slices."""

    FENCED = "fenced by the broker"
    STEPPED_DOWN = "stepped down before it tried"
    SILENT = "said nothing"


@dataclass(frozen=True, slots=True)
class Act:
    """Fault that was caused at a node. Times are epoch milliseconds.

    ``how`` tells the moment; ``INSIDE``: a worker had stopped itself in a transaction whose outputs
    were at the broker. ``served_ms`` is the time when the last of the node's slices had a new
    owner, ``woken_ms`` that of a resumption.
    """

    deed: Deed
    node_id: str
    slices: tuple[int, ...]
    at_ms: float
    how: str
    served_ms: float
    woken_ms: float | None = None

    @property
    def is_failover(self) -> bool:
        # A restart with SIGTERM leaves no slice without an owner.
        return self.deed is not Deed.RESTART


def fences(events: Sequence[SliceEvent], act: Act) -> int:
    return sum(one.what == LOST and FENCED in one.why for one in _of_woken(events, act))


def has_let_go(events: Sequence[SliceEvent], act: Act) -> bool:
    # A loss, a hand-over or a new take-over each show that the old ownership has ended.
    return {one.slice_no for one in _of_woken(events, act)} >= set(act.slices)


def ending(events: Sequence[SliceEvent], act: Act) -> Ending:
    # The broker refuses an open transaction; a slice without a transaction is given up because the
    # lease has ended, so that the broker never gets a request to refuse.
    if fences(events, act):
        return Ending.FENCED
    return Ending.STEPPED_DOWN if has_let_go(events, act) else Ending.SILENT


def _of_woken(events: Sequence[SliceEvent], act: Act) -> list[SliceEvent]:
    if act.woken_ms is None:
        return []
    return [one for one in events if one.node_id == act.node_id and one.at_ms >= act.woken_ms]


def strip(
    tenures: Sequence[SliceOwnership],
    acts: Sequence[Act],
    span_ms: tuple[float, float],
    width: int,
) -> str:
    """Return a slice's owners over time: the last character of the node's name, or a dot where
    none delivers.
    """
    start_ms, end_ms = span_ms
    cells = []
    for cell in range(width):
        middle_ms = start_ms + (cell + 0.5) * (end_ms - start_ms) / width
        owner = next((one for one in reversed(tenures) if one.from_ms <= middle_ms), None)
        is_vacant = owner is None or _has_ended(owner, acts, middle_ms)
        cells.append("·" if owner is None or is_vacant else owner.node_id[-1])
    return "".join(cells)


def _has_ended(tenure: SliceOwnership, acts: Sequence[Act], at_ms: float) -> bool:
    if tenure.handed_over_ms is not None and tenure.handed_over_ms <= at_ms:
        return True
    return any(
        act.is_failover and act.node_id == tenure.node_id and tenure.from_ms <= act.at_ms <= at_ms
        for act in acts
    )
