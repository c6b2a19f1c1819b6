"""State of a slice's election, and the effects and times of its decisions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ha.notes import OwnerNote
from ha.ownership import SliceStanding

_UNKNOWN = SliceStanding({}, math.inf)


class ClaimSlice(NamedTuple):
    """Become the owner of a vacant slice."""

    slice_no: int


class Announce(NamedTuple):
    """Name the node that is about to inherit an own slice; none any more when empty."""

    slice_no: int
    heir: str


class Resign(NamedTuple):
    """Leave an own slice, whose loop has stopped, to others."""

    slice_no: int
    why: str


class Evict(NamedTuple):
    """Remove what a dead predecessor of this very worker has left behind."""

    slice_no: int


Effect: TypeAlias = ClaimSlice | Announce | Resign | Evict


@dataclass(frozen=True, slots=True)
class ElectionPace:
    """Intervals between decisions, in seconds.

    Attributes:
        stagger_s: a vacant slice is claimed so much later for each better candidate.
        lag_s_max: a copy that is further behind may not own.
        alert_s: from naming the heir to stopping; longer than it takes to wake its loop.
        tenure_s: a new owner keeps a slice so long before it hands over to a better one.
        handed_s: so long if a living owner has handed it over. Nodes may count different leaders
            for as long as a leader takes to be stable; each would hand over to the other.
        first_s: a node that is not the first waits this much longer for a slice that it sees for
            the first time: when a cluster starts, no copy is ready at once.
        heir_s: so much longer everybody else leaves a slice to a living heir.
        last_s: a worker that may own as the last resort only waits so much longer.
    """

    stagger_s: float = 0.15
    lag_s_max: float = 10.0
    alert_s: float = 0.4
    tenure_s: float = 3.0
    first_s: float = 1.0
    heir_s: float = 2.0
    handed_s: float = 60.0
    last_s: float = 3.0


class Seat(NamedTuple):
    """A slice's owner node: its note, and whether this worker's session holds it."""

    owner: OwnerNote | None
    is_mine: bool = False


@dataclass(slots=True)
class SliceElection:
    """The state of one slice, as this worker sees it."""

    seat: Seat | None = None
    since_s: float = 0.0
    """Since when the seat is as it is."""
    standing: SliceStanding = _UNKNOWN
    is_settling: bool = False
    is_handing_over: bool = False
    announced_s: float = math.inf
    heir: str = ""
    """The successor of a slice that was left."""
    giver: OwnerNote | None = None
    """Of a slice that another handed over: who, as long as that node has not gone."""
    trouble: str = ""
    """Why its loop can't serve it, while it is owned."""
    is_giving_up: bool = False
    failures: int = 0
    """How often in a row it was left because it could not be served, and why the last time."""
    failure: str = ""
    rest_until_s: float = -math.inf


def epoch_of(seat: Seat) -> int:
    """Return the number of an ownership; -1 without an owner."""
    return -1 if seat.owner is None else seat.owner.epoch
