from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from delayservice.slices.agenda import Agenda
from delayservice.slices.any_lane import AnyLane
from delayservice.slices.edges import Edges
from delayservice.slices.slice import Slice
from delayservice.slices.transaction import Transaction


@dataclass(frozen=True, slots=True)
class LoopParts:
    """Objects of one worker's loop that its steps share."""

    slices: Mapping[int, Slice]
    transaction: Transaction
    agenda: Agenda
    edges: Edges

    def find(self, number: int, topic: str) -> tuple[Slice, AnyLane] | None:
        slice_ = self.slices.get(number)
        lane = None if slice_ is None else slice_.lanes.get(topic)
        return None if slice_ is None or lane is None else (slice_, lane)
