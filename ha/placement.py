"""Placement of the copies of each slice on nodes, and the order of its owners.

Pure, with the same result on every node whatever the order of the facts, so that no controller is
needed. Rendezvous hashing, highest random weight (Thaler and Ravishankar 1998), with a bound on
each node's load (Mirrokni, Thorup and Zadimoghaddam 2018).

All pairs of a slice and a node are sorted once, best first. A pair is taken if the slice still
lacks a node and the node has room. So a pair gives way to better pairs only, and a node that comes
or goes moves few slices besides its own. Where the bounds leave a slice without a node, other
slices move.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

# Rank (lower is better), weight negated, slice, node: sorted, the best pair comes first.
_Pair = tuple[int, int, int, str]
# Rank of a node that is not on the host of a broker that holds the slice's partition.
_NOT_BESIDE: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class PlacedMember:
    """A node, for placement.

    ``broker_id`` is the broker on the same host, if any; an empty ``rack`` is unknown and counts as
    a rack of its own.
    """

    node_id: str
    broker_id: int | None = None
    rack: str = ""


@dataclass(frozen=True, slots=True)
class SliceFacts:
    """Kafka's facts about a slice's partition, taken from the first delay topic that has it.

    ``leader`` is the id of the broker that has led it for a while, ``replicas`` the ids of the
    brokers that hold it, in Kafka's order: the first is the one that Kafka prefers as leader.
    """

    slice_no: int
    leader: int | None = None
    replicas: tuple[int, ...] = ()


def place(
    members: Collection[PlacedMember], slices: Collection[SliceFacts], replicas: int | None
) -> dict[int, frozenset[str]]:
    """Return the ids of the nodes that keep a copy of each slice, by slice: ``replicas`` nodes, or
    all if that is None or more than there are.

    Rules, the strongest first:

    1. every slice has its number of distinct nodes, and no node keeps more than 1.25 times the
       mean number of copies, rounded up;
    2. copies of a slice are spread evenly over racks that have nodes with room;
    3. nodes beside the brokers that hold the partition, in Kafka's order;
    4. nodes with a higher weight, a hash of slice and node.

    The leader is ignored: it moves often, and moving copies is expensive. Of members with the same
    ``node_id``, and of slices with the same number, one counts.

    Raises:
        ValueError: ``replicas`` is below 1.
    """
    if replicas is not None and replicas < 1:
        raise ValueError(f"a slice needs 1 replica or more, not {replicas}")
    nodes, facts = _by_id(members), _by_number(slices)
    if replicas is None or replicas >= len(nodes):
        return dict.fromkeys(facts, frozenset(nodes))

    def rank(slice_no: int, node: str) -> int:
        brokers, beside = facts[slice_no].replicas, nodes[node].broker_id
        return brokers.index(beside) if beside in brokers else _NOT_BESIDE

    pairs = _sorted_pairs(dict.fromkeys(facts, nodes), rank)
    draft = _Draft(pairs, _racks(nodes), _load_max(len(facts) * replicas, len(nodes)))
    draft.fill(pairs, replicas)
    return {slice_no: frozenset(draft.nodes_of[slice_no]) for slice_no in facts}


def rank_owners(
    placed: Mapping[int, frozenset[str]],
    live: Collection[PlacedMember],
    slices: Collection[SliceFacts],
) -> dict[int, tuple[str, ...]]:
    """Return the ids of the live nodes with a copy of each slice, in the order in which they should
    own it, by slice.

    The first is the preferred owner: the node beside the leader, else the one with the highest
    weight. The others follow by weight, so that the slices of a node that dies spread over all.

    No node is preferred for more slices than 1.25 times the mean, rounded up. The mean is the
    number of slices that have a possible owner, divided by the number of nodes that can own one.
    With every copy on every node that always holds. With few copies it may not: then the largest
    load is the smallest that is possible. A slice without a live node that keeps a copy gets an
    empty tuple.
    """
    nodes, facts = _by_id(live), _by_number(slices)
    keepers = {
        number: placed.get(number, frozenset()) & nodes.keys() for number in {*placed, *facts}
    }

    def rank(slice_no: int, node: str) -> int:
        leader = facts[slice_no].leader if slice_no in facts else None
        is_beside = leader is not None and nodes[node].broker_id == leader
        return 0 if is_beside else _NOT_BESIDE

    pairs = _sorted_pairs(keepers, rank)
    owned, able = {pair[2] for pair in pairs}, {pair[3] for pair in pairs}
    draft = _Draft(pairs, _racks(nodes), _load_max(len(owned), len(able)))
    draft.fill(pairs, 1)
    order = {number: list(draft.nodes_of.get(number, ())) for number in sorted(keepers)}
    for _, _, slice_no, node in sorted(pairs, key=lambda pair: pair[1]):
        if node not in draft.nodes_of[slice_no]:
            order[slice_no].append(node)
    return {slice_no: tuple(ranked) for slice_no, ranked in order.items()}


class _Draft:
    """Unfinished placement of copies on nodes. ``nodes_of``: nodes chosen so far, for every slice
    in the pairs.
    """

    def __init__(self, pairs: Iterable[_Pair], racks: Mapping[str, str], load_max: int) -> None:
        self.nodes_of: dict[int, set[str]] = {}
        self._choices: dict[int, list[str]] = {}  # best first
        self._slices_of: dict[str, set[int]] = {}
        self._racks = racks
        self._rack_load: Counter[tuple[int, str]] = Counter()  # copies of a slice in a rack
        self._load_max = load_max
        for _, _, slice_no, node in pairs:
            self.nodes_of.setdefault(slice_no, set())
            self._choices.setdefault(slice_no, []).append(node)
            self._slices_of.setdefault(node, set())

    def fill(self, pairs: Iterable[_Pair], copies: int) -> None:
        # A bound on the load that cannot be kept is raised by as little as possible. For ``place``
        # that never happens: if every node with room keeps the slice already, a full node that
        # lacks the slice keeps more slices than a node with room, so one of them can move there.
        for per_rack in range(1, copies + 1):
            pairs = [pair for pair in pairs if not self._settles(pair, copies, per_rack)]
        for slice_no in self.nodes_of:
            while len(self.nodes_of[slice_no]) < copies:
                if not self._shift(slice_no):
                    self._load_max += 1

    def _settles(self, pair: _Pair, copies: int, per_rack: int) -> bool:
        """Place the pair's slice on its node if allowed; return whether the pair is done: its slice
        is placed there, its slice has all ``copies``, or its node is full. ``per_rack``: largest
        number of copies of the slice in one rack for now.
        """
        _, _, slice_no, node = pair
        taken = self.nodes_of[slice_no]
        if len(taken) == copies or not self._has_room(node):
            return True
        if self._in_rack(slice_no, node) >= per_rack:
            return False
        self._take(slice_no, node)
        return True

    def _shift(self, slice_no: int) -> bool:
        """Find one more node for a slice along the shortest chain of moves, and return True; return
        False if there is no such chain.

        A slice moves into a node's place, the slice that was there moves on, and so on until a node
        has room: an augmenting path, searched breadth first.
        """
        origin: dict[int, tuple[int, str]] = {}  # slice: its successor and the node
        waiting, seen = deque([slice_no]), {slice_no}
        while waiting:
            mover = waiting.popleft()
            if self._move(mover, origin):
                return True
            for node in self._others(mover):
                for neighbour in sorted(self._slices_of[node] - seen):
                    origin[neighbour] = (mover, node)
                    seen.add(neighbour)
                    waiting.append(neighbour)
        return False

    def _move(self, slice_no: int, origin: Mapping[int, tuple[int, str]]) -> bool:
        """Carry out the chain of moves that begins with ``slice_no`` going to a node with room;
        return False if no node has room for it. ``origin``: for each other slice, the slice that
        takes its place and the node where.
        """
        free = [node for node in self._others(slice_no) if self._has_room(node)]
        if not free:
            return False
        while slice_no in origin:
            successor, vacant = origin[slice_no]
            self._leave(slice_no, vacant)
            self._take(slice_no, self._apart(slice_no, free))
            slice_no, free = successor, [vacant]
        self._take(slice_no, self._apart(slice_no, free))
        return True

    def _apart(self, slice_no: int, free: Iterable[str]) -> str:
        return min(free, key=lambda node: self._in_rack(slice_no, node))

    def _take(self, slice_no: int, node: str) -> None:
        self.nodes_of[slice_no].add(node)
        self._slices_of[node].add(slice_no)
        self._rack_load[slice_no, self._racks[node]] += 1

    def _leave(self, slice_no: int, node: str) -> None:
        self.nodes_of[slice_no].remove(node)
        self._slices_of[node].remove(slice_no)
        self._rack_load[slice_no, self._racks[node]] -= 1

    def _has_room(self, node: str) -> bool:
        return len(self._slices_of[node]) < self._load_max

    def _others(self, slice_no: int) -> list[str]:
        return [node for node in self._choices[slice_no] if node not in self.nodes_of[slice_no]]

    def _in_rack(self, slice_no: int, node: str) -> int:
        return self._rack_load[slice_no, self._racks[node]]


def _by_id(members: Iterable[PlacedMember]) -> dict[str, PlacedMember]:
    # In an order independent of the input's.
    known = sorted(members, key=lambda m: (m.node_id, _or_below(m.broker_id), m.rack))
    return {member.node_id: member for member in known}


def _by_number(slices: Iterable[SliceFacts]) -> dict[int, SliceFacts]:
    # As in ``_by_id``.
    known = sorted(slices, key=lambda s: (s.slice_no, _or_below(s.leader), s.replicas))
    return {facts.slice_no: facts for facts in known}


def _or_below(broker_id: int | None) -> int:
    return -1 if broker_id is None else broker_id


def _racks(nodes: Mapping[str, PlacedMember]) -> dict[str, str]:
    return {node: f"rack {m.rack}" if m.rack else f"node {node}" for node, m in nodes.items()}


def _load_max(copies: int, nodes: int) -> int:
    # In integers, because floats may round wrongly.
    return -(-5 * copies // (4 * nodes)) if nodes else 0


def _sorted_pairs(
    keepers: Mapping[int, Collection[str]], rank: Callable[[int, str], int]
) -> list[_Pair]:
    return sorted(
        (rank(slice_no, node), -_weight(slice_no, node), slice_no, node)
        for slice_no, nodes in keepers.items()
        for node in nodes
    )


def _weight(slice_no: int, node: str) -> int:
    digest = blake2b(f"{slice_no} {node}".encode(), digest_size=8).digest()
    return int.from_bytes(digest)


class StableLeaders:
    """Filter of partition leaders that ignores short changes.

    A partition's leader moves for a moment whenever a broker restarts; if owners followed at once,
    each slice would be handed over twice without need.
    """

    def __init__(self, stable_s: float) -> None:
        self._stable_s = stable_s
        self._stable: dict[int, int | None] = {}
        self._seen: dict[int, tuple[int | None, float]] = {}

    def settle(self, facts: SliceFacts, now_s: float) -> SliceFacts:
        # The first known leader counts at once.
        slice_no, leader = facts.slice_no, facts.leader
        seen, since_s = self._seen.get(slice_no, (leader, now_s))
        if leader != seen:
            seen, since_s = leader, now_s
        self._seen[slice_no] = (seen, since_s)
        stable = self._stable.setdefault(slice_no, leader)
        if leader is not None and (stable is None or now_s - since_s >= self._stable_s):
            stable = self._stable[slice_no] = leader
        return SliceFacts(slice_no, stable, facts.replicas)
