"""The notes that nodes share in ZooKeeper: small JSON texts, and their paths.

    <root>/nodes/<node_id>            persistent   NodeNote   member of the cluster
    <root>/live/<node_id>:<worker>    ephemeral    LifeNote   live worker, progress of its copies
    <root>/slices/<n>/owner           ephemeral    OwnerNote  owner of the slice
    <root>/slices/<n>/epoch           persistent   a number, one higher with each owner
    <root>/pinned                     persistent   PinNote    owners keep their slices

Names come from the settings, which allow only characters that are valid in a path.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from delayservice.contract.codes import printable

_Note = TypeVar("_Note", bound=msgspec.Struct)
# Node, instance and worker number: identity of a worker process over all of its sessions.
WorkerId: TypeAlias = tuple[str, str, int]


CONTRACT_VERSION_MIN: Final = 1
"""Contract version that every node knows, also one whose note was not read yet."""


class NodeNote(msgspec.Struct, frozen=True):
    """A node of the cluster, alive or not."""

    node_id: str
    # Distinguishes two nodes of one name.
    instance: str
    workers: Annotated[int, msgspec.Meta(ge=1)]
    # Id of the broker on the same host; None: there is no such broker.
    broker_id: int | None = None
    # Rack of the node; empty: unknown.
    rack: str = ""
    # Host name, for people.
    address: str = ""
    contract_version: int = CONTRACT_VERSION_MIN


class _WorkerNote(msgspec.Struct, frozen=True):
    node_id: str
    instance: str
    worker: int

    @property
    def worker_id(self) -> WorkerId:
        return self.node_id, self.instance, self.worker


class LifeNote(_WorkerNote, frozen=True):
    """A live worker. ``caught_up``: slices that it could own now. ``stored``: next source offset to
    store, by slice, summed over the delay topics, because the note is written with every heartbeat
    and ZooKeeper must not hold many topics times many slices.
    """

    caught_up: tuple[int, ...] = ()
    stored: dict[int, int] = {}


class OwnerNote(_WorkerNote, frozen=True):
    """The owner of a slice. ``epoch``: number of this ownership. ``heir``: node to which it hands
    over next; empty: no hand-over.
    """

    epoch: int
    heir: str = ""


class SliceOwner(NamedTuple):
    """Owner of a slice as read from ZooKeeper. ``owner`` None: the slice is vacant."""

    owner: OwnerNote | None = None
    # Whether this worker's present session holds the owner node.
    is_mine: bool = False
    # Whether no session holds it, as it was made by hand.
    is_nobodys: bool = False


class PinNote(msgspec.Struct, frozen=True):
    """Pin of ownership: while it exists, no owner hands over just because a better node exists."""

    # Time of the pin, epoch milliseconds.
    at_ms: int = 0
    # Name of the operator; empty: unknown.
    by: str = ""
    why: str = ""

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.at_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%MZ")
        return printable(f"since {since} by {self.by or 'an unknown hand'}: {self.why}")


def encode(note: msgspec.Struct) -> bytes:
    return msgspec.json.encode(note)


def decode(data: bytes, kind: type[_Note]) -> _Note | None:
    # None: it is not a note of this kind.
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def worker_name(node_id: str, worker: int) -> str:
    return f"{node_id}:{worker}"


def worker_of(name: str) -> tuple[str, int] | None:
    node_id, _, worker = name.rpartition(":")
    return (node_id, int(worker)) if node_id and worker.isdecimal() else None
