"""State of a slice's election, and the effects and times of its decisions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ha.notes import OwnerNote
from ha.ownership import SliceStanding

_UNKNOWN = SliceStanding({}, math.inf)


class ClaimSlice(NamedTuple):
    """Effect: become the owner of a vacant slice."""

    slice_no: int


class Announce(NamedTuple):
    """Effect: write the heir of an own slice to its owner node; empty: withdraw the heir."""

    slice_no: int
    heir: str


class Resign(NamedTuple):
    """Effect: give up an own slice, for the reason ``why``."""

    slice_no: int
    why: str


class Evict(NamedTuple):
    """Effect: remove the owner node that a dead session of this worker has left."""

    slice_no: int


Effect: TypeAlias = ClaimSlice | Announce | Resign | Evict


@dataclass(frozen=True, slots=True)
class ElectionPace:
    """Intervals between decisions, in seconds.

    Attributes:
        stagger_s: delay of the claim of a vacant slice, for each better candidate.
        lag_s_max: largest lag of a copy that may own.
        alert_s: wait between naming the heir and stopping; longer than it takes to wake its loop.
        tenure_s: time for which a new owner keeps a slice before it hands over to a better node.
        handed_s: tenure if a living owner handed the slice over. Nodes may count different leaders
            until a leader is stable; with a shorter tenure they would hand over to each other.
        first_s: extra delay of a node that is not the first, for a slice that it reads for the
            first time: when a cluster starts, no copy is ready at once.
        heir_s: extra delay of other candidates while a named heir is alive.
        last_s: extra delay of a worker that may own only as the last resort.
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
    """Time since which the seat is unchanged, on the lease's clock, in s."""
    standing: SliceStanding = _UNKNOWN
    is_settling: bool = False
    is_handing_over: bool = False
    announced_s: float = math.inf
    heir: str = ""
    """Node that the last owner named as its heir; empty: no node."""
    giver: OwnerNote | None = None
    """Owner that handed the slice over to this node; None: no owner, or it is not alive."""
    trouble: str = ""
    """Reason why this worker's loop can't serve the owned slice; empty: it can."""
    is_giving_up: bool = False
    failures: int = 0
    """Consecutive resignations because the slice could not be served; ``failure``: last reason."""
    failure: str = ""
    rest_until_s: float = -math.inf


def epoch_of(seat: Seat) -> int:
    """Return the epoch of a seat's owner; -1 without an owner."""
    return -1 if seat.owner is None else seat.owner.epoch
