"""Who owned which slice when, told from what the nodes have logged. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

TOOK_OVER: Final = "took_over"
HANDED_OVER: Final = "handed_over"
LOST: Final = "ownership_lost"
FENCED: Final = "fenced"
"""In the reason for a loss: the broker refused what a former owner wanted to commit."""


@dataclass(frozen=True, slots=True)
class Told:
    """One line of a node's log that speaks of a slice. ``at_ms`` is epoch milliseconds; ``epoch``
    is 0 where the line names none.
    """

    at_ms: float
    node_id: str
    what: str
    slice_no: int
    epoch: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Tenure:
    """One ownership of a slice. ``handed_over_ms``: when its node let go in good order; None while
    it has not, or when it never came to that.
    """

    slice_no: int
    node_id: str
    epoch: int
    from_ms: float
    handed_over_ms: float | None = None


class HandOver(NamedTuple):
    """A slice that went from one owner to the next in good order, at this epoch millisecond."""

    slice_no: int
    at_ms: float


def tenures(told: Sequence[Told]) -> list[Tenure]:
    """Every ownership, by slice and epoch."""
    let_go = {
        (one.slice_no, one.node_id, one.epoch): one.at_ms for one in told if one.what == HANDED_OVER
    }
    taken = sorted(
        (one for one in told if one.what == TOOK_OVER), key=lambda one: (one.slice_no, one.epoch)
    )
    return [
        Tenure(
            one.slice_no,
            one.node_id,
            one.epoch,
            one.at_ms,
            let_go.get((one.slice_no, one.node_id, one.epoch)),
        )
        for one in taken
    ]


def owners(told: Sequence[Told]) -> dict[int, Tenure]:
    """The last owner of each slice, alive or not: the one with the highest epoch."""
    return {tenure.slice_no: tenure for tenure in tenures(told)}


def hand_overs(told: Sequence[Told]) -> list[HandOver]:
    """Every change of owner before which the old one let go in good order."""
    every = tenures(told)
    return [
        HandOver(before.slice_no, before.handed_over_ms)
        for before, after in pairwise(every)
        if before.slice_no == after.slice_no
        and before.handed_over_ms is not None
        # A zombie may let go in good order what is another's already.
        and before.handed_over_ms <= after.from_ms
    ]
