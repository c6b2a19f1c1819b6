"""State of the election: of a slice, effects of decisions, intervals, and the lease. The *owner
node* of a slice is the ZooKeeper node with its ``OwnerNote`` (see ``notes``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from delayservice.engine.ports import Role
from ha.notes import OwnerNote, SliceOwner
from ha.ownership import SliceStanding

_UNKNOWN = SliceStanding({}, math.inf)


class ClaimSlice(NamedTuple):
    slice_no: int


class Announce(NamedTuple):
    """Decision to write ``heir`` into the owner note of a slice that this worker owns; empty: no
    heir.
    """

    slice_no: int
    heir: str


class Resign(NamedTuple):
    slice_no: int
    why: str


class Evict(NamedTuple):
    """Decision to remove a slice's owner node in ZooKeeper that an ended session of this worker has
    left.
    """

    slice_no: int


Effect: TypeAlias = ClaimSlice | Announce | Resign | Evict


@dataclass(frozen=True, slots=True)
class ElectionPace:
    """Intervals between decisions, in seconds."""

    # Delay of the claim of a vacant slice, for each better candidate.
    stagger_s: float = 0.15
    # Largest lag behind the owner's copy with which a node may own a slice.
    lag_s_max: float = 10.0
    # Time for which an owner goes on after naming its heir; longer than it takes to wake the heir's
    # loop.
    alert_s: float = 0.4
    # Time for which a new owner keeps a slice before it hands over to a better node.
    tenure_s: float = 3.0
    # Extra delay of every candidate but the best, for a slice that it reads for the first time:
    # when a cluster starts, no copy is ready at once.
    first_s: float = 1.0
    # Extra delay of other candidates while the heir named by the last owner is alive.
    heir_s: float = 2.0
    # Like ``tenure_s``, for an owner that got the slice from a living one, or from one that died or
    # could not serve it. Until a partition's leader is stable, nodes may count different ones as
    # leader, and would hand over to each other after a shorter time; and a crash should not cost a
    # second pause.
    handed_s: float = 60.0
    # Extra delay of a worker that may own a slice only if no other node takes it.
    last_s: float = 3.0


@dataclass(slots=True)
class SliceElection:
    """State of one slice in the election, as one worker knows it. ``seat``: its owner, None: not
    read yet; ``standing``: progress of this node's copy; ``is_settling``: whether this worker
    delivers it.
    """

    seat: SliceOwner | None = None
    # Time from which waits before a claim or a hand-over count, in s on the lease's clock: when the
    # owner last changed.
    since_s: float = 0.0
    standing: SliceStanding = _UNKNOWN
    is_settling: bool = False
    # Whether this worker, the owner, finishes its last transaction for the slice, to resign then.
    is_handing_over: bool = False
    # Since when the owner note has named the present choice of heir, in s on the lease's clock;
    # infinity: not yet.
    announced_s: float = math.inf
    # Node that the last owner of a vacant slice named as its heir; empty: no node.
    heir: str = ""
    # Owner that handed the slice over to this node; None: there is no such owner, or it is not
    # alive.
    previous_owner: OwnerNote | None = None
    # Whether the last owner left the slice without an heir: it died, or could not serve it.
    is_rescued: bool = False
    # Reason why this worker, as the owner, can't serve the slice; empty: it can.
    trouble: str = ""
    # Whether the failure of the present ownership was counted already.
    is_giving_up: bool = False
    # Number of consecutive resignations because this worker could not serve the slice. ``failure``:
    # reason of the last one.
    failures: int = 0
    failure: str = ""
    # Time before which this worker does not claim the slice after a failure, in s on the lease's
    # clock.
    rest_until_s: float = -math.inf


def epoch_of(seat: SliceOwner) -> int:
    return -1 if seat.owner is None else seat.owner.epoch


# Length of the lease as a part of the session timeout. The rest allows for ZooKeeper's leader,
# which learns of a heartbeat up to half a tick late, and for clocks of different speed.
_SAFE_PART = 2 / 3


class Lease:
    """Time for which a node may own slices without an answer from ZooKeeper. Written by one thread,
    read by any.

    kazoo reports SUSPENDED and then nothing when the network is cut, and nothing at all while the
    process is frozen. So ownership has an end of its own, on a clock that neither stops in suspend
    nor jumps. The session can't end before the lease (design section 6).
    """

    def __init__(self, boot_s: Callable[[], float]) -> None:
        self._boot_s = boot_s
        self._end_s = float("-inf")

    def now_s(self) -> float:
        # To be read before a heartbeat is sent.
        return self._boot_s()

    def renew(self, sent_s: float, session_timeout_s: float) -> None:
        """Extend the lease to two thirds of the session timeout after ``sent_s`` (seconds since
        boot), when a heartbeat was sent that ZooKeeper has answered.
        """
        self._end_s = max(self._end_s, sent_s + session_timeout_s * _SAFE_PART)

    def end(self) -> None:
        self._end_s = float("-inf")

    @property
    def end_s(self) -> float:
        # Minus infinity: it was ended.
        return self._end_s

    @property
    def is_valid(self) -> bool:
        return self._boot_s() < self._end_s


class RoleViews:
    """A worker's roles and epochs by slice, and its roles while it may not act as an owner. An
    object never changes, so that a loop can detect new roles by the identity of the object.
    """

    def __init__(self, roles: Mapping[int, Role], epochs: Mapping[int, int]) -> None:
        # Roles while the lease is valid and ZooKeeper connected.
        self.owning = roles
        # Roles while the lease is valid and ZooKeeper disconnected.
        self.paused = _with_owners_as(Role.PAUSED, roles)
        # Roles after the end of the lease.
        self.ended = _with_owners_as(Role.REPLICA, roles)
        # Numbers of this worker's ownerships.
        self.epochs = epochs


def _with_owners_as(other: Role, roles: Mapping[int, Role]) -> Mapping[int, Role]:
    if Role.OWNER not in roles.values():
        return roles  # the same object: a disconnection changes nothing
    return {n: other if role is Role.OWNER else role for n, role in roles.items()}
