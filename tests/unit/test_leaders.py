"""A leader counts once it has stayed for a while."""

from __future__ import annotations

from ha.placement import SliceFacts, StableLeaders


def settle(leaders: StableLeaders, leader: int | None, now_s: float) -> int | None:
    return leaders.settle(SliceFacts(0, leader, (1, 2)), now_s).leader


def test_a_new_leader_counts_once_it_has_stayed() -> None:
    leaders = StableLeaders(60)
    settle(leaders, 1, 0)
    assert settle(leaders, 2, 10) == 1
    assert settle(leaders, 2, 69.9) == 1
    assert settle(leaders, 2, 70) == 2


def test_a_leader_that_goes_and_comes_back_changes_nothing() -> None:
    leaders = StableLeaders(60)
    settle(leaders, 1, 0)
    settle(leaders, 2, 10)
    settle(leaders, 1, 50)
    assert settle(leaders, 1, 200) == 1
    assert settle(leaders, 2, 201) == 1, "its time counts from its return"


def test_a_partition_without_a_leader_keeps_the_one_that_counted() -> None:
    leaders = StableLeaders(60)
    settle(leaders, 1, 0)
    settle(leaders, None, 10)
    assert settle(leaders, None, 100) == 1


def test_the_first_leader_of_a_partition_that_had_none_counts_at_once() -> None:
    leaders = StableLeaders(60)
    assert settle(leaders, None, 0) is None
    assert settle(leaders, 2, 1) == 2


def test_slices_have_leaders_of_their_own_and_keep_their_replicas() -> None:
    leaders = StableLeaders(60)
    settle(leaders, 1, 0)
    other = SliceFacts(1, 2, (2, 3))
    assert leaders.settle(other, 1) == other
