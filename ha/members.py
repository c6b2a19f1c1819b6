"""Data classes that describe the cluster to people: its nodes, owners, and progress of copies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ha.notes import LifeNote, NodeNote, OwnerNote


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the cluster, as shown to people.

    Attributes:
        node_id: name of the node.
        broker_id: id of the broker on the same host; None: there is no such broker.
        rack: rack of the node; empty: unknown.
        address: host name, for people.
        workers: configured number of worker processes.
        alive: numbers of the workers that are alive.
    """

    node_id: str
    broker_id: int | None
    rack: str
    address: str
    workers: int
    alive: list[int]


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """A slice and its owner.

    Attributes:
        slice: number of the slice.
        owner: name of the owner's node; empty: the slice is vacant.
        worker: number of the owner's worker process.
        epoch: number of this ownership; 0: vacant.
        heir: node that takes the slice over next; empty: no hand-over.
    """

    slice: int
    owner: str
    worker: int
    epoch: int
    heir: str


class MemberCopies(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of one node's copy of a slice.

    Attributes:
        slice: number of the slice.
        node: name of the node that keeps it.
        stored: sum of the next source offsets to be stored, over the delay topics.
        caught_up: whether the node's worker may own the slice now.
    """

    slice: int
    node: str
    stored: int
    caught_up: bool


class Members(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the cluster, as shown to people.

    Attributes:
        nodes: member nodes, alive or not.
        slices: all slices with their owners.
        copies: copies of slices on live workers.
    """

    nodes: list[Member]
    slices: list[Holding]
    copies: list[MemberCopies]


def survey_of(
    nodes: Iterable[NodeNote], lives: Iterable[LifeNote], owners: Mapping[int, OwnerNote | None]
) -> Members:
    """Return the state of the cluster from the notes in ZooKeeper.

    Args:
        nodes: notes of the members.
        lives: notes of the live workers.
        owners: owner of every slice that exists, by slice number; None: vacant.
    """
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
    held = [
        Holding(slice=number, owner=o.node_id, worker=o.worker, epoch=o.epoch, heir=o.heir)
        if o is not None
        else Holding(slice=number, owner="", worker=0, epoch=0, heir="")
        for number, o in sorted(owners.items())
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
    """Merge descriptions of the cluster, read by several workers of a node, into one."""
    nodes: dict[str, Member] = {}
    for node in (node for part in parts for node in part.nodes):
        known = nodes.get(node.node_id)
        alive = sorted({*node.alive, *(known.alive if known is not None else ())})
        nodes[node.node_id] = msgspec.structs.replace(node, alive=alive)
    slices = {held.slice: held for part in parts for held in part.slices}
    copies = {(copy.slice, copy.node): copy for part in parts for copy in part.copies}
    return Members(
        nodes=[nodes[name] for name in sorted(nodes)],
        slices=[slices[number] for number in sorted(slices)],
        copies=[copies[place] for place in sorted(copies)],
    )
