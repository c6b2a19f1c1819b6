"""Roles of all slices, for loops that compare them by identity at every turn."""

from __future__ import annotations

from collections.abc import Mapping

from delayservice.engine.role import Role


class RoleViews:
    """Roles and epochs by slice, and the roles while an owner may not act as one. Never changed.

    Attributes:
        owning: roles while the lease is valid and ZooKeeper connected.
        paused: roles while the lease is valid and ZooKeeper disconnected.
        ended: roles after the end of the lease.
        epochs: numbers of this worker's ownerships.
    """

    def __init__(self, roles: Mapping[int, Role], epochs: Mapping[int, int]) -> None:
        self.owning = roles
        self.paused = _with_owners_as(Role.PAUSED, roles)
        self.ended = _with_owners_as(Role.REPLICA, roles)
        self.epochs = epochs


def _with_owners_as(other: Role, roles: Mapping[int, Role]) -> Mapping[int, Role]:
    if Role.OWNER not in roles.values():
        return roles  # the same object: a disconnection changes nothing
    return {n: other if role is Role.OWNER else role for n, role in roles.items()}
