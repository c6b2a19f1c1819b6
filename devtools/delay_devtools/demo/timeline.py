"""Owners of each slice over time and why they changed, from the nodes' logs and the
demo's faults.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final

from delay_devtools.nodes import FENCED, LOST, SliceEvent, SliceOwnership, ownerships


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

    ``held_back`` is the number of offsets in the target topics between the last stable offset and
    the high watermark right after it: uncommitted outputs, and all records behind them.
    ``served_ms`` is the time when the last of the node's slices had a new owner, ``woken_ms`` that
    of a resumption.
    """

    deed: Deed
    node_id: str
    slices: tuple[int, ...]
    at_ms: float
    how: str
    held_back: int
    served_ms: float
    woken_ms: float | None = None

    @property
    def is_failover(self) -> bool:
        # A restart with SIGTERM leaves no slice without an owner.
        return self.deed is not Deed.RESTART


@dataclass(frozen=True, slots=True)
class Missed:
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Turn:
    """Row of the timeline: a node owns a slice for a time; or, with ``is_fence``, the moment
    ``from_ms`` at which the broker refused a previous owner.
    """

    slice_no: int
    node_id: str
    epoch: int
    from_ms: float
    why: str
    until_ms: float | None = None
    # Time before this ownership in which no node could deliver, in ms.
    vacant_ms: float = 0.0
    is_fence: bool = False


_START: Final = "start"


def turns(events: Sequence[SliceEvent], acts: Sequence[Act]) -> list[Turn]:
    found = [*_ownerships(ownerships(events), acts), *_fences(events, acts)]
    return sorted(found, key=lambda turn: (turn.slice_no, turn.from_ms))


def fences(events: Sequence[SliceEvent], act: Act) -> int:
    return sum(_is_fence(one, act) for one in events)


def has_let_go(events: Sequence[SliceEvent], act: Act) -> bool:
    # A loss, a hand-over or a new take-over each show that the old ownership has ended.
    return {one.slice_no for one in events if _is_of_woken(one, act)} >= set(act.slices)


def ending(events: Sequence[SliceEvent], act: Act) -> Ending:
    # The broker refuses an open transaction; a slice without a transaction is given up because the
    # lease has ended, so that the broker never gets a request to refuse.
    if fences(events, act):
        return Ending.FENCED
    return Ending.STEPPED_DOWN if has_let_go(events, act) else Ending.SILENT


def _is_of_woken(one: SliceEvent, act: Act) -> bool:
    return act.woken_ms is not None and one.node_id == act.node_id and one.at_ms >= act.woken_ms


def _is_fence(one: SliceEvent, act: Act) -> bool:
    return one.what == LOST and FENCED in one.why and _is_of_woken(one, act)


def _fences(events: Sequence[SliceEvent], acts: Sequence[Act]) -> Iterator[Turn]:
    every = ownerships(events)
    for one in events:
        if any(_is_fence(one, act) for act in acts):
            epochs = [
                tenure.epoch
                for tenure in every
                if (tenure.slice_no, tenure.node_id) == (one.slice_no, one.node_id)
                and tenure.from_ms < one.at_ms
            ]
            why = "woken, and fenced by the broker"
            epoch = max(epochs, default=0)
            yield Turn(one.slice_no, one.node_id, epoch, one.at_ms, why, is_fence=True)


def _ownerships(every: Sequence[SliceOwnership], acts: Sequence[Act]) -> Iterator[Turn]:
    why, vacant_ms = _START, 0.0
    for tenure, after in pairwise([*every, None]):
        if tenure is None:
            return
        follows = after is not None and after.slice_no == tenure.slice_no
        successor = after if follows else None
        ended_ms, how = _end(tenure, successor, acts)
        yield Turn(
            tenure.slice_no,
            tenure.node_id,
            tenure.epoch,
            tenure.from_ms,
            why,
            ended_ms if successor else None,
            vacant_ms,
        )
        why, vacant_ms = _START, 0.0
        if successor is not None:
            why, vacant_ms = how, successor.from_ms - ended_ms


def _end(
    tenure: SliceOwnership, successor: SliceOwnership | None, acts: Sequence[Act]
) -> tuple[float, str]:
    last_ms = successor.from_ms if successor else float("inf")
    deeds = [
        act
        for act in acts
        if act.node_id == tenure.node_id and tenure.from_ms <= act.at_ms <= last_ms
    ]
    for act in deeds:
        if act.is_failover:
            return act.at_ms, f"{tenure.node_id} {act.deed}"
    if tenure.handed_over_ms is not None and tenure.handed_over_ms <= last_ms:
        why = "was told to stop" if deeds else "handed it back"
        return tenure.handed_over_ms, f"{tenure.node_id} {why}"
    return last_ms, f"{tenure.node_id} let go"


def strip(found: Sequence[Turn], start_ms: float, end_ms: float, width: int) -> str:
    """Return a slice's owners over time: the last character of the node's name, or a dot
    for none.
    """
    cell_ms = (end_ms - start_ms) / width
    cells = ["·"] * width
    for turn in found:
        if turn.is_fence:
            continue
        until_ms = end_ms if turn.until_ms is None else turn.until_ms
        for cell in range(width):
            middle_ms = start_ms + (cell + 0.5) * cell_ms
            if turn.from_ms <= middle_ms < until_ms:
                cells[cell] = turn.node_id[-1]
    return "".join(cells)
