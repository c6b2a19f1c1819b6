"""Records of the digest topic, as JSON for Spark and people; see ``docs/internals/digests.md``.

An hour row holds the digest of one copy for one hour. The cut row, written after the changed hour
rows, names the checkpoint at which all hour rows of the copy hold. A copy that begins to publish
from nothing gets a new ``life``; rows of another ``life`` do not belong to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from delayservice.engine.cursor import Cursor
from delayservice.replicas.digest import SLOT_MS, HourRow

VERSION: Final = 1

Row = tuple[bytes, bytes | None]
"""Key and value of a record; without a value, a tombstone."""

_encode = msgspec.json.Encoder().encode


class Place(NamedTuple):
    """Identity of a copy: its node, its shard, and ``life``, which is new whenever the node begins
    to publish the copy from nothing.
    """

    node: str
    topic: str
    topic_id: str
    partition: int
    life: str

    @property
    def cut_key(self) -> bytes:
        """Return the key of the copy's cut row."""
        return f"c/{self.node}/{self.topic}/{self.partition}".encode()


class Unreadable(NamedTuple):
    """Key range ``[start_ms, stop_ms)`` of a copy that can't be read, with its offsets and why."""

    start_ms: int
    stop_ms: int
    first_offset: int
    stop_offset: int
    why: str


class CutFacts(NamedTuple):
    """Fields of a cut row beside its place.

    Attributes:
        cut: offset of the checkpoint in its partition of the checkpoint topic.
        cut_ms: time at which the broker appended it, epoch milliseconds.
        epoch: epoch of the owner that wrote it.
        commit: number of the commit among those of that owner.
        cursor: the cursor of the shard in that checkpoint.
        stored: the next source offset that the copy will store.
        from_ms: start of the first slot in the rows, epoch milliseconds.
        totals: number of hours, count of records, and hash of all rows together.
        pending: approximate number of pending records, those in slots below ``from_ms`` included:
            the minute that is being settled counts as a whole.
        scanned_ms: start of the last complete scan, epoch milliseconds; 0: there was no scan yet.
        behind: whether the copy has not reached the cut, so that its rows can't be compared.
        role: ``owner`` or ``replica``.
        store: kind of its store.
        damaged: key ranges that the last scan could not read.
        at_ms: time by the node's clock, epoch milliseconds.
    """

    cut: int
    cut_ms: int
    epoch: int
    commit: int
    cursor: Cursor
    stored: int
    from_ms: int
    totals: tuple[int, int, int]
    pending: int
    scanned_ms: int
    behind: bool
    role: str
    store: str
    damaged: Sequence[Unreadable]
    at_ms: int


def hour_row(place: Place, cut: int, hour: HourRow) -> Row:
    """Return the row of one hour of a copy, a tombstone if the hour is empty. ``cut``: offset of
    the checkpoint at which it holds.
    """
    key = f"h/{place.node}/{place.topic}/{place.partition}/{hour.hour_ms}".encode()
    if not hour.slots:
        return key, None
    return key, _encode(
        {
            "v": VERSION,
            **place._asdict(),
            "hour_ms": hour.hour_ms,
            "slot_ms": SLOT_MS,
            "cut": cut,
            "slots": [[index, count, f"{hashed:016x}"] for index, count, hashed in hour.slots],
        }
    )


def cut_row(place: Place, facts: CutFacts) -> Row:
    """Return a copy's cut row, which names the checkpoint at which its hour rows hold."""
    fields = facts._asdict()
    del fields["cursor"], fields["totals"]
    hours, count, hashed = facts.totals
    fields |= {
        "v": VERSION,
        **place._asdict(),
        "k": facts.cursor.key,
        "h": facts.cursor.offset,
        "hours": hours,
        "count": count,
        "hash": f"{hashed:016x}",
        "damaged": [damage._asdict() for damage in facts.damaged],
    }
    return place.cut_key, _encode(fields)


def retired_row(place: Place) -> Row:
    """Return the tombstone of the cut row of a copy that the node no longer keeps."""
    return place.cut_key, None
