"""Ownerships of slices, derived from what the nodes have logged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

TOOK_OVER: Final = "took_over"
HANDED_OVER: Final = "handed_over"
LOST: Final = "ownership_lost"
# Part of a logged reason for a loss: the broker refused a commit, as the slice has a newer owner.
FENCED: Final = "fenced"


@dataclass(frozen=True, slots=True)
class SliceEvent:
    at_ms: float
    node_id: str
    what: str
    slice_no: int
    epoch: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class SliceOwnership:
    # handed_over_ms: None if the node did not hand the slice over.
    slice_no: int
    node_id: str
    epoch: int
    from_ms: float
    handed_over_ms: float | None = None


def ownerships(events: Sequence[SliceEvent]) -> list[SliceOwnership]:
    let_go = {
        (one.slice_no, one.node_id, one.epoch): one.at_ms
        for one in events
        if one.what == HANDED_OVER
    }
    taken = sorted(
        (one.slice_no, one.epoch, one.node_id, one.at_ms) for one in events if one.what == TOOK_OVER
    )
    return [
        SliceOwnership(number, node_id, epoch, at_ms, let_go.get((number, node_id, epoch)))
        for number, epoch, node_id, at_ms in taken
    ]


def owners(events: Sequence[SliceEvent]) -> dict[int, SliceOwnership]:
    return {tenure.slice_no: tenure for tenure in ownerships(events)}


def hand_overs(events: Sequence[SliceEvent]) -> list[tuple[int, float]]:
    every = ownerships(events)
    return [
        (before.slice_no, before.handed_over_ms)
        for before, after in pairwise(every)
        if before.slice_no == after.slice_no
        and before.handed_over_ms is not None
        # A node that was frozen may hand over a slice that has another owner already.
        and before.handed_over_ms <= after.from_ms
    ]
