"""Examples of who keeps a copy and who owns. The rules for any input are in the property tests."""

from collections import Counter
from collections.abc import Mapping

import pytest

from ha.placement import PlacedMember, SliceFacts, place, rank_owners

SLICES = [SliceFacts(slice_no) for slice_no in range(64)]


def nodes(count: int, racks: int = 0) -> list[PlacedMember]:
    """node-0 beside broker 0, and so on, in turn in each rack."""
    return [PlacedMember(f"node-{i}", i, f"r{i % racks}" if racks else "") for i in range(count)]


def on(*numbers: int) -> frozenset[str]:
    return frozenset(f"node-{number}" for number in numbers)


def loads(placed: Mapping[int, frozenset[str]]) -> Counter[str]:
    return Counter(node for kept in placed.values() for node in kept)


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


def test_copies_are_beside_the_brokers_that_hold_the_partition() -> None:
    slices = [SliceFacts(i, replicas=(i % 6, (i + 1) % 6, (i + 2) % 6)) for i in range(12)]
    placed = place(nodes(6), slices, 3)
    assert placed == {s.slice_no: on(*s.replicas) for s in slices}


def test_with_fewer_copies_than_kafka_has_its_first_replicas_count() -> None:
    slices = [SliceFacts(i, replicas=(5 - i, i, (i + 1) % 6)) for i in range(6)]
    assert place(nodes(6), slices, 1) == {i: on(5 - i) for i in range(6)}


def test_with_more_copies_than_kafka_has_others_join_those_beside_its_brokers() -> None:
    slices = [SliceFacts(i, replicas=(i % 6,)) for i in range(12)]
    placed = place(nodes(6), slices, 3)
    assert all(on(i % 6) < kept and len(kept) == 3 for i, kept in placed.items())


def test_a_node_beside_every_partition_keeps_no_more_than_its_share() -> None:
    slices = [SliceFacts(i, replicas=(0,)) for i in range(40)]
    kept = loads(place(nodes(5), slices, 2))
    assert max(kept.values()) == kept["node-0"] == 20


def test_copies_are_in_different_racks() -> None:
    for kept in place(nodes(9, racks=3), SLICES, 3).values():
        assert {int(node[5:]) % 3 for node in kept} == {0, 1, 2}


def test_more_copies_than_racks_are_even_over_the_racks() -> None:
    for kept in place(nodes(12, racks=2), SLICES, 4).values():
        assert Counter(int(node[5:]) % 2 for node in kept) == {0: 2, 1: 2}


def test_racks_come_before_brokers() -> None:
    slices = [SliceFacts(i, replicas=(i % 6, (i + 2) % 6)) for i in range(12)]
    for slice_no, kept in place(nodes(6, racks=2), slices, 2).items():
        assert on(slice_no % 6) < kept
        assert {int(node[5:]) % 2 for node in kept} == {0, 1}


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


def test_a_rack_with_one_node_is_not_overloaded() -> None:
    members = [
        PlacedMember("lonely", rack="a"),
        *(PlacedMember(f"node-{i}", rack="b") for i in range(9)),
    ]
    placed = place(members, SLICES, 2)
    assert loads(placed)["lonely"] == 16
    assert {len(kept) for kept in placed.values()} == {2}


def test_unknown_racks_are_not_one_rack() -> None:
    members = [*(PlacedMember(f"node-{i}") for i in range(6)), PlacedMember("known", rack="a")]
    plain = [PlacedMember(member.node_id) for member in members]
    assert place(members, SLICES, 2) == place(plain, SLICES, 2)


@pytest.mark.parametrize("racks", [0, 3])
def test_a_node_that_goes_moves_little_besides_its_own_copies(racks: int) -> None:
    members = nodes(12, racks)
    before = place(members, SLICES, 3)
    moved = 0
    for gone in members:
        after = place([member for member in members if member != gone], SLICES, 3)
        moved += sum(len(after[i] - before[i]) for i in before) - loads(before)[gone.node_id]
    # Of 192 copies, 16 of them on that node, 1 more moved when this was measured; 3 with racks.
    assert moved / len(members) <= (6 if racks else 2)


def test_the_node_beside_the_leader_is_preferred() -> None:
    slices = [SliceFacts(i, leader=i % 4) for i in range(64)]
    ranked = rank_owners(place(nodes(4), slices, None), nodes(4), slices)
    assert preferred(ranked) == {i: f"node-{i % 4}" for i in range(64)}


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


def test_when_one_broker_leads_all_its_node_owns_no_more_than_its_share() -> None:
    slices = [SliceFacts(i, leader=0) for i in range(64)]
    ranked = rank_owners(place(nodes(4), slices, None), nodes(4), slices)
    owned = Counter(preferred(ranked).values())
    assert max(owned.values()) == owned["node-0"] == 20


def test_nodes_that_claim_one_broker_share_its_slices() -> None:
    members = [PlacedMember("x", 0), PlacedMember("y", 0), PlacedMember("z", 1)]
    slices = [SliceFacts(i, leader=0) for i in range(12)]
    placed = place(members, slices, None)
    owned = Counter(preferred(rank_owners(placed, members, slices)).values())
    assert owned["x"] + owned["y"] >= 9
    assert max(owned.values()) <= 5
    assert rank_owners(placed, members[::-1], slices) == rank_owners(placed, members, slices)


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


def test_owners_that_live_rarely_change_when_a_node_dies() -> None:
    members = nodes(8)
    placed = place(members, SLICES, 3)
    before = preferred(rank_owners(placed, members, SLICES))
    changed = 0
    for gone in members:
        after = preferred(rank_owners(placed, [m for m in members if m != gone], SLICES))
        changed += sum(before[i] not in {after[i], gone.node_id} for i in before)
    assert changed / len(members) <= 3  # of 56; it was 1.6 when this was measured
