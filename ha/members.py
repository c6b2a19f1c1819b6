"""Data classes that describe the cluster to people: its nodes, owners, and progress of copies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from ha.notes import LifeNote, NodeNote, OwnerNote


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(use_attribute_docstrings=True))
class Member:
    """A node of the cluster."""

    # A dataclass, for msgspec packs it in the answers of workers.
    node_id: str
    broker_id: int | None
    """Id of the broker on the same host; null: there is no such broker."""
    rack: str
    """Empty: unknown."""
    address: str
    """Host name."""
    workers: int
    """Configured number of worker processes."""
    alive: list[int]
    """Numbers of its live workers."""


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """A slice and its owner."""

    slice: int
    # Name of the owner's node; empty: the slice is vacant.
    owner: str
    # Number of the owner's worker process.
    worker: int
    # Number of this ownership; 0: vacant.
    epoch: int
    # Node that takes the slice over next; empty: no hand-over.
    heir: str


class MemberCopies(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of one node's copy of a slice."""

    slice: int
    node: str
    # Sum of the next source offsets to be stored, over the delay topics.
    stored: int
    # Whether the node's worker may own the slice now.
    caught_up: bool


class Members(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the cluster, as shown to people."""

    # Member nodes, alive or not.
    nodes: list[Member]
    # All slices with their owners.
    slices: list[Holding]
    # Copies of slices on live workers.
    copies: list[MemberCopies]


def survey_of(
    nodes: Iterable[NodeNote], lives: Iterable[LifeNote], owners: Mapping[int, OwnerNote | None]
) -> Members:
    """Return the state of the cluster from the notes in ZooKeeper; an owner None: vacant."""
    lives = list(lives)
    members = [
        Member(
            node_id=node.node_id,
            broker_id=node.broker_id,
            rack=node.rack,
            address=node.address,
            workers=node.workers,
            alive=sorted(life.worker for life in lives if life.node_id == node.node_id),
        )
        for node in nodes
    ]
    shown = {number: note or OwnerNote("", "", 0, 0) for number, note in sorted(owners.items())}
    held = [
        Holding(slice=number, owner=o.node_id, worker=o.worker, epoch=o.epoch, heir=o.heir)
        for number, o in shown.items()
    ]
    copies = [
        MemberCopies(
            slice=number, node=life.node_id, stored=stored, caught_up=number in life.caught_up
        )
        for life in lives
        for number, stored in life.stored.items()
    ]
    copies.sort(key=lambda copy: (copy.slice, copy.node))
    return Members(nodes=sorted(members, key=lambda m: m.node_id), slices=held, copies=copies)


def joined(parts: Sequence[Members]) -> Members:
    nodes: dict[str, Member] = {}
    for node in (node for part in parts for node in part.nodes):
        known = nodes.get(node.node_id)
        alive = sorted({*node.alive, *(known.alive if known is not None else ())})
        nodes[node.node_id] = replace(node, alive=alive)
    slices = {held.slice: held for part in parts for held in part.slices}
    copies = {(copy.slice, copy.node): copy for part in parts for copy in part.copies}
    return Members(
        nodes=[nodes[name] for name in sorted(nodes)],
        slices=[slices[number] for number in sorted(slices)],
        copies=[copies[place] for place in sorted(copies)],
    )
