"""A worker's knowledge of the other nodes, and their order as owners of each slice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ha.notes import CONTRACT_VERSION_MIN, LifeNote, NodeNote
from ha.placement import PlacedMember, SliceFacts, place, rank_owners


class ClusterView:
    """Members of the cluster, its slices, and the candidates of each slice."""

    def __init__(self, me: NodeNote, replicas: int | None) -> None:
        self._me = me
        self._replicas = replicas
        self._facts: dict[int, SliceFacts] = {}
        # Notes of the members of the cluster, alive or not, by node id.
        self.nodes: dict[str, NodeNote] = {me.node_id: me}
        # Whether the members were read from ZooKeeper at least once.
        self.is_informed = False
        # Ids of the nodes that have a living worker.
        self.live: frozenset[str] = frozenset()
        # Slices that each worker of another node could own now, by worker name.
        self._caught_up: dict[str, frozenset[int]] = {}
        self._placed: dict[int, frozenset[str]] = {}
        self._ranked: dict[int, tuple[str, ...]] = {}

    def set_nodes(self, notes: Iterable[NodeNote]) -> bool:
        """Set the members of the cluster; return whether they have changed or were set for the
        first time.
        """
        nodes = {note.node_id: note for note in notes} | {self._me.node_id: self._me}
        is_news = nodes != self.nodes or not self.is_informed
        self.nodes, self.is_informed = nodes, True
        return is_news

    def add_slices(self, facts: dict[int, SliceFacts]) -> bool:
        before, self._facts = self._facts, self._facts | facts
        return before != self._facts

    def set_lives(self, notes: Mapping[str, LifeNote]) -> None:
        # Sets, for they are searched once for each slice.
        self._caught_up = {name: frozenset(note.caught_up) for name, note in notes.items()}

    @property
    def known(self) -> frozenset[int]:
        return frozenset(self._facts)

    @property
    def contract_version(self) -> int:
        """Return the newest contract version that every live node supports. A live node without a
        note, or any node before the members were read, counts as one that knows only the first.
        """
        live = {self._me.node_id, *self.live}
        known = [self.nodes[name].contract_version for name in live & self.nodes.keys()]
        if not self.is_informed or live - self.nodes.keys():
            known.append(CONTRACT_VERSION_MIN)
        return min(known)

    def rank(self, *, without_me: bool) -> None:
        """Compute which nodes are to keep a copy of each slice, and in which order live nodes
        should own it, for ``placed_on`` and ``ranked``. ``without_me``: this node is left out of
        that order.
        """
        members = [
            PlacedMember(note.node_id, note.broker_id, note.rack) for note in self.nodes.values()
        ]
        gone = {self._me.node_id} if without_me else set()
        present = self.live - gone
        live = [member for member in members if member.node_id in present]
        facts = list(self._facts.values())
        self._placed = place(members, facts, self._replicas) if facts else {}
        self._ranked = rank_owners(self._placed, live, facts) if facts else {}

    def ranked(self, slice_no: int) -> tuple[str, ...]:
        return self._ranked.get(slice_no, ())

    def placed_on(self, slice_no: int) -> frozenset[str]:
        return self._placed.get(slice_no, frozenset())

    def worker_of(self, node_id: str, slice_no: int) -> str | None:
        note = self.nodes.get(node_id)
        return None if note is None else f"{node_id}:{slice_no % note.workers}"

    def is_ready(self, node_id: str, slice_no: int) -> bool:
        name = self.worker_of(node_id, slice_no)
        return name is not None and slice_no in self._caught_up.get(name, ())
