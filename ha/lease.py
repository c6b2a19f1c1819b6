"""Limit of the time for which a node may own slices without an answer from ZooKeeper, and its roles
before and after that.

kazoo reports SUSPENDED and then nothing when the network is cut, and nothing at all while the
process is frozen. So ownership has an end of its own, on a clock that neither stops in suspend nor
jumps. The session can't end before the lease (design section 6).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from delayservice.engine.role import Role

# Length of the lease as a part of the session timeout. The rest allows for ZooKeeper's leader,
# which learns of a heartbeat up to half a tick late, and for clocks of different speed.
_SAFE_PART = 2 / 3


class Lease:
    """Lease that ends unless it is renewed in time. Written by one thread, read by any."""

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
