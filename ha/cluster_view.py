"""A worker's knowledge of the other nodes, and their order as owners of each slice."""

from __future__ import annotations

from collections.abc import Mapping

from ha.notes import UNADVERTISED_VERSION, LifeNote, NodeNote
from ha.placement import PlacedMember, SliceFacts, place, rank_owners


class ClusterView:
    """Members of the cluster, its slices, and the candidates of each slice.

    Args:
        me: this node.
        replicas: copies of each slice; None: every node keeps one.
    """

    def __init__(self, me: NodeNote, replicas: int | None) -> None:
        self._me = me
        self._replicas = replicas
        self._facts: dict[int, SliceFacts] = {}
        self._nodes: dict[str, NodeNote] = {me.node_id: me}
        self._is_informed = False
        self._live: frozenset[str] = frozenset()
        self._caught_up: dict[str, frozenset[int]] = {}
        """Slices that each other worker could own now, by worker name."""
        self._placed: dict[int, frozenset[str]] = {}
        self._ranked: dict[int, tuple[str, ...]] = {}

    def lives(self, notes: Mapping[str, LifeNote]) -> None:
        """Set the latest notes of the workers that ``rivals`` names, by worker name."""
        # Sets, for they are searched once for each slice.
        self._caught_up = {name: frozenset(note.caught_up) for name, note in notes.items()}

    @property
    def known(self) -> frozenset[int]:
        """Return the numbers of all slices that ``serve`` has reported so far."""
        return frozenset(self._facts)

    @property
    def contract_version(self) -> int:
        """Return the newest contract version that every live node knows; a node without a note
        counts as one that advertises no version.
        """
        live = {self._me.node_id, *self._live}
        known = [self._nodes[name].contract_version for name in live & self._nodes.keys()]
        if not self._is_informed or live - self._nodes.keys():
            known.append(UNADVERTISED_VERSION)
        return min(known)

    def _rank(self, *, without_me: bool) -> None:
        """Place the copies of each slice and rank its candidates; this node may be excluded."""
        members = [
            PlacedMember(note.node_id, note.broker_id, note.rack) for note in self._nodes.values()
        ]
        gone = {self._me.node_id} if without_me else set()
        present = self._live - gone
        live = [member for member in members if member.node_id in present]
        facts = list(self._facts.values())
        self._placed = place(members, facts, self._replicas) if facts else {}
        self._ranked = rank_owners(self._placed, live, facts) if facts else {}

    def _first(self, slice_no: int) -> str:
        ranked = self._ranked.get(slice_no, ())
        return ranked[0] if ranked else ""

    def _worker_of(self, node_id: str, slice_no: int) -> str | None:
        note = self._nodes.get(node_id)
        return None if note is None else f"{node_id}:{slice_no % note.workers}"

    def _is_ready(self, node_id: str, slice_no: int) -> bool:
        """Return whether a node has reported its copy of the slice as ready to own."""
        name = self._worker_of(node_id, slice_no)
        return name is not None and slice_no in self._caught_up.get(name, ())
