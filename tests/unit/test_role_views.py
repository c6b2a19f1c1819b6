"""What a loop reads of its roles at every turn."""

from __future__ import annotations

from delayservice.engine.role import Role
from ha.role_views import RoleViews


def test_an_owner_is_paused_while_disconnected_and_a_replica_when_its_lease_has_ended() -> None:
    views = RoleViews({0: Role.OWNER, 1: Role.HEIR, 2: Role.REPLICA}, {0: 7})
    assert views.owning == {0: Role.OWNER, 1: Role.HEIR, 2: Role.REPLICA}
    assert views.paused == {0: Role.PAUSED, 1: Role.HEIR, 2: Role.REPLICA}
    assert views.ended == {0: Role.REPLICA, 1: Role.HEIR, 2: Role.REPLICA}
    assert views.epochs == {0: 7}


def test_without_an_owner_a_disconnection_changes_nothing() -> None:
    views = RoleViews({1: Role.HEIR}, {})
    assert views.owning is views.paused
    assert views.owning is views.ended
