"""Whatever nodes, racks and partitions there are: enough copies, bounded loads, little movement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from ha.placement import PlacedMember, SliceFacts, place, rank_owners

BROKERS = st.integers(0, 6)
RACKS = st.sampled_from(["", "a", "a", "a", "b", "c"])
MEMBERS = st.lists(
    st.builds(PlacedMember, st.text(max_size=3), st.none() | BROKERS, RACKS),
    max_size=9,
    unique_by=lambda member: member.node_id,
)
SLICES = st.lists(
    st.builds(
        SliceFacts,
        st.integers(0, 300),
        st.none() | BROKERS,
        st.lists(BROKERS, max_size=5, unique=True).map(tuple),
    ),
    max_size=24,
    unique_by=lambda facts: facts.slice_no,
)
REPLICAS = st.none() | st.integers(1, 10)

Cluster = tuple[list[PlacedMember], list[SliceFacts], int | None]


@st.composite
def skewed(draw: st.DrawFn) -> Cluster:
    """As many copies as the brokers of all slices have nodes, and a few nodes more: those brokers'
    nodes are full when the last slices come, and the others cannot take all that is left.
    """
    busy, idle = draw(st.integers(3, 9)), draw(st.integers(1, 4))
    members = [PlacedMember(f"n{i}", i, draw(RACKS)) for i in range(busy + idle)]
    held = st.permutations(range(busy)).map(tuple)
    count = draw(st.integers(1, 40))
    slices = [SliceFacts(i, draw(st.none() | BROKERS), draw(held)) for i in range(count)]
    return members, slices, draw(st.integers(max(1, busy - 1), busy + 1))


CLUSTERS = st.tuples(MEMBERS, SLICES, REPLICAS) | skewed()


@st.composite
def copies(draw: st.DrawFn) -> dict[int, frozenset[str]]:
    """Copies as few and as uneven as a cluster may have them while it moves them."""
    names = st.sampled_from("abcdef")
    numbers = st.integers(0, 30)
    return draw(st.dictionaries(numbers, st.frozensets(names, max_size=3), max_size=16))


LIVE = st.sets(st.sampled_from("abcdefg")).flatmap(
    lambda names: st.tuples(*(st.builds(PlacedMember, st.just(n), BROKERS) for n in sorted(names)))
)


def share(count: int, nodes: int) -> int:
    """1.25 times the mean, rounded up."""
    return -(-5 * count // (4 * nodes))


def loads(placed: Mapping[int, Collection[str]]) -> Counter[str]:
    return Counter(node for kept in placed.values() for node in kept)


def owned(ranked: Mapping[int, tuple[str, ...]]) -> Counter[str]:
    return Counter(order[0] for order in ranked.values() if order)


@given(CLUSTERS)
@settings(max_examples=500)
def test_every_slice_has_its_copies_and_no_node_more_than_its_share(cluster: Cluster) -> None:
    members, slices, replicas = cluster
    names = {member.node_id for member in members}
    placed = place(members, slices, replicas)
    assert placed.keys() == {facts.slice_no for facts in slices}
    each = len(names) if replicas is None else min(replicas, len(names))
    for kept in placed.values():
        assert kept <= names
        assert len(kept) == each
    if each < len(names):
        most = share(len(slices) * each, len(names))
        assert all(load <= most for load in loads(placed).values())


@given(CLUSTERS)
@settings(max_examples=500)
def test_a_rack_has_one_copy_more_only_when_racks_with_fewer_are_full(cluster: Cluster) -> None:
    members, slices, replicas = cluster
    racks = {m.node_id: m.rack or f"of {m.node_id}" for m in members}
    placed = place(members, slices, replicas)
    most = share(sum(map(len, placed.values())), len(members) or 1)
    kept_by = loads(placed)
    for kept in placed.values():
        in_rack = Counter(racks[node] for node in kept)
        roomy = {racks[node] for node in racks if node not in kept and kept_by[node] < most}
        fewest = min((in_rack[rack] for rack in roomy), default=len(kept))
        assert max(in_rack.values(), default=0) <= fewest + 1


@given(CLUSTERS)
@settings(max_examples=500)
def test_only_a_full_node_beside_an_earlier_replica_is_passed_over(cluster: Cluster) -> None:
    members, slices, replicas = cluster
    members = [PlacedMember(member.node_id, member.broker_id) for member in members]
    placed = place(members, slices, replicas)
    most = share(sum(map(len, placed.values())), len(members) or 1)
    kept_by = loads(placed)
    for facts in slices:
        rank = {
            m.node_id: facts.replicas.index(m.broker_id) if m.broker_id in facts.replicas else 99
            for m in members
        }
        kept = placed[facts.slice_no]
        worst = max((rank[node] for node in kept), default=0)
        passed_over = [n for n in rank if n not in kept and rank[n] < worst]
        assert all(kept_by[node] == most for node in passed_over)


@given(CLUSTERS, st.data())
def test_neither_the_order_of_the_facts_nor_the_leader_decides_who_keeps_a_copy(
    cluster: Cluster, data: st.DataObject
) -> None:
    members, slices, replicas = cluster
    placed = place(members, slices, replicas)
    others = data.draw(st.permutations(members))
    moved = [
        SliceFacts(facts.slice_no, data.draw(BROKERS), facts.replicas)
        for facts in data.draw(st.permutations(slices))
    ]
    assert place(others, moved, replicas) == placed


@given(st.sampled_from([0, 2, 3]), st.integers(2, 5), st.integers(32, 64), st.data(), st.text("ab"))
def test_a_leaving_node_moves_few_other_copies(
    racks: int, size: int, count: int, data: st.DataObject, prefix: str
) -> None:
    nodes = max(5, size * (racks or 2))
    members = [
        PlacedMember(f"{prefix}{i}", rack=f"r{i % racks}" if racks else "") for i in range(nodes)
    ]
    slices = [SliceFacts(i) for i in range(count)]
    replicas = data.draw(st.integers(1, nodes - 2))
    gone = data.draw(st.sampled_from(members))
    before = place(members, slices, replicas)
    after = place([member for member in members if member != gone], slices, replicas)
    own = loads(before)[gone.node_id]
    moved = sum(len(after[i] - before[i]) for i in before)
    # Measured: 0.1 to 2 % of all copies on average, an eighth and 2 or 3 where a bound jumps.
    assert moved - own <= 4 + count * replicas // 8


@given(copies(), LIVE, st.lists(st.builds(SliceFacts, st.integers(0, 30), BROKERS), max_size=16))
@settings(max_examples=500)
def test_owners_are_the_live_keepers_and_their_loads_as_even_as_the_copies_allow(
    placed: dict[int, frozenset[str]], live: tuple[PlacedMember, ...], slices: list[SliceFacts]
) -> None:
    names = {member.node_id for member in live}
    ranked = rank_owners(placed, live, slices)
    assert ranked.keys() == placed.keys() | {facts.slice_no for facts in slices}
    for slice_no, order in ranked.items():
        assert len(order) == len(set(order))
        assert set(order) == placed.get(slice_no, frozenset()) & names
    able = sorted({node for order in ranked.values() for node in order})
    # Hall: nodes that alone keep some slices share those, whoever is preferred.
    forced = [
        -(-sum(0 < len(order) == len(set(order) & set(some)) for order in ranked.values()) // size)
        for size in range(1, len(able) + 1)
        for some in combinations(able, size)
    ]
    counts = owned(ranked)
    bound = share(counts.total(), len(able)) if able else 0
    assert max(counts.values(), default=0) <= max([bound, *forced])


@given(CLUSTERS)
@settings(max_examples=300)
def test_with_all_copies_everywhere_no_owner_has_more_than_its_share(cluster: Cluster) -> None:
    members, slices, _ = cluster
    counts = owned(rank_owners(place(members, slices, None), members, slices))
    most = share(len(slices), len(members) or 1)
    assert all(load <= most for load in counts.values())
    assert counts.total() == (len(slices) if members else 0)


@given(CLUSTERS)
@settings(max_examples=300)
def test_the_node_beside_the_leader_owns_its_share_first(cluster: Cluster) -> None:
    members, slices, replicas = cluster
    brokers = {member.node_id: member.broker_id for member in members}
    ranked = rank_owners(place(members, slices, replicas), members, slices)
    counts = owned(ranked)
    able = {node for order in ranked.values() for node in order}
    for facts in slices:
        order = ranked[facts.slice_no]
        beside = {node for node in order if brokers[node] == facts.leader is not None}
        if beside and order[0] not in beside:
            assert all(counts[node] >= share(len(slices), len(able)) for node in beside)


@given(CLUSTERS, st.data())
def test_neither_the_order_of_the_facts_nor_of_the_nodes_decides_who_owns(
    cluster: Cluster, data: st.DataObject
) -> None:
    members, slices, replicas = cluster
    placed = place(members, slices, replicas)
    shuffled = dict(data.draw(st.permutations(list(placed.items()))))
    others, facts = data.draw(st.permutations(members)), data.draw(st.permutations(slices))
    assert rank_owners(shuffled, others, facts) == rank_owners(placed, members, slices)


@given(CLUSTERS, st.data())
def test_those_after_the_preferred_owner_keep_their_order_whoever_dies_or_leads(
    cluster: Cluster, data: st.DataObject
) -> None:
    members, slices, replicas = cluster
    placed = place(members, slices, replicas)
    live = [member for member in members if data.draw(st.booleans())]
    before, after = rank_owners(placed, members, slices), rank_owners(placed, live, [])
    for slice_no, order in after.items():
        both = set(order[1:]) & set(before[slice_no][1:])
        kept = [node for node in before[slice_no] if node in both]
        assert [node for node in order if node in both] == kept


@given(st.integers(5, 12), st.integers(32, 64), st.text("ab"), st.data())
def test_an_owner_that_lives_rarely_changes_when_another_dies(
    nodes: int, count: int, prefix: str, data: st.DataObject
) -> None:
    members = [PlacedMember(f"{prefix}{i}") for i in range(nodes)]
    slices = [SliceFacts(i) for i in range(count)]
    replicas = data.draw(st.none() | st.integers(2, nodes))
    placed = place(members, slices, replicas)
    gone = data.draw(st.sampled_from(members))
    before = rank_owners(placed, members, slices)
    after = rank_owners(placed, [member for member in members if member != gone], slices)
    changed = sum(before[i][0] not in {after[i][0], gone.node_id} for i in before)
    # Measured: 2 % of all slices on average, an eighth and 3 where a bound jumps.
    assert changed <= 5 + count // 8
