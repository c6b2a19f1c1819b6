"""The notes that nodes leave each other in ZooKeeper: small JSON texts, and where they lie.

    <root>/nodes/<node_id>            persistent   NodeNote   who belongs to the cluster
    <root>/live/<node_id>:<worker>    ephemeral    LifeNote   who lives, and how far its copies are
    <root>/slices/<n>/owner           ephemeral    OwnerNote  who settles the slice
    <root>/slices/<n>/epoch           persistent   a number, one higher with each owner
    <root>/pinned                     persistent   PinNote    owners stay where they are

Names come from the settings, which allow nothing in them that a path could stumble over.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final, TypeAlias, TypeVar

import msgspec

from delayservice.contract.codes import printable

_Note = TypeVar("_Note", bound=msgspec.Struct)
WorkerId: TypeAlias = tuple[str, str, int]
"""Node, instance and worker: what an earlier session of the very same worker has in common."""


UNADVERTISED_VERSION: Final = 3
"""Version of the contract that nodes know which do not say it: their service is older than that."""


class NodeNote(msgspec.Struct, frozen=True):
    """A node of the cluster, alive or not. ``instance`` tells two nodes of one name apart;
    ``contract_version`` is the newest version of the contract that it knows.
    """

    node_id: str
    instance: str
    workers: Annotated[int, msgspec.Meta(ge=1)]
    broker_id: int | None = None
    rack: str = ""
    address: str = ""
    contract_version: int = UNADVERTISED_VERSION


class LifeNote(msgspec.Struct, frozen=True):
    """A worker that lives. ``caught_up``: slices that it could own now; ``stored``: how far each
    copy is, the next source offsets that it will store, added up over the delay topics: this is
    written each second, and ZooKeeper is no place for many topics times many slices.
    """

    node_id: str
    instance: str
    worker: int
    caught_up: tuple[int, ...] = ()
    stored: dict[int, int] = {}

    @property
    def worker_id(self) -> WorkerId:
        """Return the worker that wrote the note."""
        return self.node_id, self.instance, self.worker


class OwnerNote(msgspec.Struct, frozen=True):
    """The owner of a slice. ``heir``: whom it is about to hand over to, or empty."""

    node_id: str
    instance: str
    worker: int
    epoch: int
    heir: str = ""

    @property
    def worker_id(self) -> WorkerId:
        """Return the worker that wrote the note."""
        return self.node_id, self.instance, self.worker


class PinNote(msgspec.Struct, frozen=True):
    """While it is there, no owner hands a slice over only because another node is preferred.

    Attributes:
        at_ms: since when, epoch milliseconds.
        by: who wanted it so.
        why: the reason that was given.
    """

    at_ms: int = 0
    by: str = ""
    why: str = ""

    def __str__(self) -> str:
        """For people, in one line."""
        since = datetime.fromtimestamp(self.at_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%MZ")
        return printable(f"since {since} by {self.by or 'an unknown hand'}: {self.why}")


def encode(note: msgspec.Struct) -> bytes:
    """Return the text of a note."""
    return msgspec.json.encode(note)


def decode(data: bytes, kind: type[_Note]) -> _Note | None:
    """Return the note in a text; None: none of our nodes has written it."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError:
        return None


def worker_name(node_id: str, worker: int) -> str:
    """The name of a worker's node below ``live``."""
    return f"{node_id}:{worker}"


def worker_of(name: str) -> tuple[str, int] | None:
    """Return node and worker of such a name; None for any other name."""
    node_id, _, worker = name.rpartition(":")
    return (node_id, int(worker)) if node_id and worker.isdecimal() else None
