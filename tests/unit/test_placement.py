"""Examples of placement; the rules for any input are in the property tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from ha.placement import PlacedMember, SliceFacts, StableLeaders, place, rank_owners

SLICES = [SliceFacts(slice_no) for slice_no in range(64)]


def nodes(count: int, racks: int = 0) -> list[PlacedMember]:
    """node-0 beside broker 0, and so on, in turn in each rack."""
    return [PlacedMember(f"node-{i}", i, f"r{i % racks}" if racks else "") for i in range(count)]


def on(*numbers: int) -> frozenset[str]:
    return frozenset(f"node-{number}" for number in numbers)


def preferred(ranked: Mapping[int, tuple[str, ...]]) -> dict[int, str]:
    return {slice_no: order[0] for slice_no, order in ranked.items()}


def test_no_replica_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="1 replica or more, not 0"):
        place(nodes(3), SLICES, 0)


def test_every_release_and_every_machine_computes_this() -> None:
    placed = place(nodes(5), SLICES[:4], 2)
    assert placed == {0: on(1, 4), 1: on(0, 3), 2: on(3, 4), 3: on(1, 2)}
    assert rank_owners(placed, nodes(5), SLICES[:4]) == {
        0: ("node-4", "node-1"),
        1: ("node-0", "node-3"),
        2: ("node-3", "node-4"),
        3: ("node-2", "node-1"),
    }


@pytest.mark.parametrize("first", range(20))
def test_a_slice_that_gives_way_to_another_keeps_its_racks_apart(first: int) -> None:
    # The last two slices find four full nodes, and need one of them each.
    racks = dict(
        zip(["node-0", "node-1", "node-2", "node-3", "x", "y", "z"], "abcdabb", strict=True)
    )
    members = [PlacedMember(node, i, rack) for i, (node, rack) in enumerate(racks.items())]
    slices = [SliceFacts(first + i, replicas=(0, 1, 2, 3)) for i in range(5)]
    late = [SliceFacts(first + 5), SliceFacts(first + 6)]
    placed = place(members, slices + late, 4)
    assert all({"x", "y", "z"} < placed[facts.slice_no] for facts in late)
    for kept in placed.values():
        if on(2, 3) <= kept:
            assert {racks[node] for node in kept} == set("abcd")


def test_unknown_racks_are_not_one_rack() -> None:
    members = [*(PlacedMember(f"node-{i}") for i in range(6)), PlacedMember("known", rack="a")]
    plain = [PlacedMember(member.node_id) for member in members]
    assert place(members, SLICES, 2) == place(plain, SLICES, 2)


def test_a_leader_whose_node_is_dead_or_keeps_no_copy_is_passed_over() -> None:
    placed = {0: on(0, 1), 1: on(1, 2)}
    slices = [SliceFacts(0, leader=2), SliceFacts(1, leader=3)]
    ranked = rank_owners(placed, nodes(3), slices)
    assert {i: frozenset(order) for i, order in ranked.items()} == placed
    slices = [SliceFacts(0, leader=1), SliceFacts(1, leader=2)]
    assert rank_owners(placed, nodes(2), slices) == {0: ("node-1", "node-0"), 1: ("node-1",)}


def test_a_node_beside_no_broker_is_not_beside_an_unknown_leader() -> None:
    members = [PlacedMember("x"), *nodes(4)]
    placed = place(members, SLICES, None)
    beside = [PlacedMember(member.node_id, 9) for member in members]
    assert rank_owners(placed, members, SLICES) == rank_owners(placed, beside, SLICES)


def test_of_two_facts_about_one_node_or_slice_the_same_one_always_counts() -> None:
    members = [*nodes(5), PlacedMember("node-0", 3)]
    slices = [*(SliceFacts(i, i % 5, (i % 5,)) for i in range(16)), SliceFacts(0, 1, (1, 2))]
    placed = place(members, slices, 2)
    assert place(members[::-1], slices[::-1], 2) == placed
    ranked = rank_owners(placed, members, slices)
    assert rank_owners(placed, members[::-1], slices[::-1]) == ranked
    assert ranked.keys() == placed.keys()


def test_the_only_way_to_keep_the_bound_is_found_through_a_chain_of_moves() -> None:
    # Four slices and five nodes: one each. Every leader lures its slice to the place of another.
    placed = {0: on(0), 1: on(0, 1), 2: on(1, 2), 3: on(2, 3, 4)}
    slices = [SliceFacts(1, leader=0), SliceFacts(2, leader=1), SliceFacts(3, leader=2)]
    owners = preferred(rank_owners(placed, nodes(5), slices))
    assert owners.pop(3) in on(3, 4)
    assert owners == {0: "node-0", 1: "node-1", 2: "node-2"}


def test_a_bound_that_cannot_be_kept_is_passed_by_no_more_than_needed() -> None:
    # Two nodes must own eight slices, where 3 is the share; the leader lures to the first.
    placed = {i: on(0) if i < 3 else on(0, 1) for i in range(8)} | {i: on(i) for i in (8, 9, 10)}
    slices = [SliceFacts(i, leader=0) for i in range(3, 8)]
    owners = Counter(preferred(rank_owners(placed, nodes(11), slices)).values())
    assert owners["node-0"] == owners["node-1"] == 4


def test_slices_of_a_node_that_dies_spread_over_the_others() -> None:
    placed = place(nodes(5), SLICES, None)
    ranked = rank_owners(placed, nodes(5), SLICES)
    orphans = [i for i, order in ranked.items() if order[0] == "node-0"]
    heirs = Counter(ranked[i][1] for i in orphans)
    assert heirs.keys() == on(1, 2, 3, 4)
    after = rank_owners(placed, nodes(5)[1:], SLICES)
    as_said = sum(ranked[i][1] == after[i][0] for i in orphans)
    assert as_said >= 0.8 * len(orphans)


# --- a leader counts once it has stayed for a while -----------------------------------------------


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
