"""A lease ends before the session can, whatever the node hears or does not hear."""

from __future__ import annotations

import pytest

from delayservice.engine.ports import Role
from ha.election_state import Lease, RoleViews


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_lease_is_not_valid_before_the_first_answer(clock: Clock) -> None:
    assert not Lease(clock).is_valid


def test_a_lease_counts_from_when_the_beat_was_sent_and_ends_before_the_session(
    clock: Clock,
) -> None:
    lease = Lease(clock)
    sent_s = lease.now_s()
    clock.now_s += 3  # the answer took a while
    lease.renew(sent_s, 6)
    clock.now_s = sent_s + 3.99
    assert lease.is_valid
    clock.now_s = sent_s + 4
    assert not lease.is_valid


def test_a_late_answer_does_not_shorten_a_lease(clock: Clock) -> None:
    lease = Lease(clock)
    lease.renew(100, 6)
    lease.renew(98, 6)
    clock.now_s = 103.9
    assert lease.is_valid


def test_a_lost_session_ends_its_lease_at_once(clock: Clock) -> None:
    lease = Lease(clock)
    lease.renew(100, 6)
    lease.end()
    assert not lease.is_valid


def test_a_disconnected_owner_is_paused_and_then_a_replica() -> None:
    views = RoleViews({0: Role.OWNER, 1: Role.HEIR, 2: Role.REPLICA}, {0: 7})
    assert views.owning == {0: Role.OWNER, 1: Role.HEIR, 2: Role.REPLICA}
    assert views.paused == {0: Role.PAUSED, 1: Role.HEIR, 2: Role.REPLICA}
    assert views.ended == {0: Role.REPLICA, 1: Role.HEIR, 2: Role.REPLICA}
    assert views.epochs == {0: 7}


def test_without_an_owner_a_disconnection_changes_nothing() -> None:
    views = RoleViews({1: Role.HEIR}, {})
    assert views.owning is views.paused
    assert views.owning is views.ended
