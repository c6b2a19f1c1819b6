"""Records of the digest topic, as JSON for Spark and people; see ``docs/internals/digests.md``.

An hour row holds the digest of one copy for one hour. The cut row, written after the hour rows that
changed, names the checkpoint at which all hour rows of the copy hold. A node that begins to publish
all rows of a copy anew gives it a new random ``life``; rows with another ``life`` do not belong to
the copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from delayservice.engine.cursor import Cursor
from delayservice.replicas.digest import SLOT_MS, HourRow

VERSION: Final = 1

# Key and value of a record of the digest topic; value None: a tombstone.
DigestRow = tuple[bytes, bytes | None]

_encode = msgspec.json.Encoder().encode


class CopyId(NamedTuple):
    """Identity of a copy: its node, its delay topic (name and id) and partition, and ``life``."""

    node: str
    topic: str
    topic_id: str
    partition: int
    life: str

    @property
    def cut_key(self) -> bytes:
        return f"c/{self.node}/{self.topic}/{self.partition}".encode()


class Unreadable(NamedTuple):
    """Range of a copy that can't be read: key times ``[start_ms, stop_ms)`` in epoch milliseconds,
    source offsets ``[first_offset, stop_offset)``, and a text that says why.
    """

    start_ms: int
    stop_ms: int
    first_offset: int
    stop_offset: int
    why: str


class CutFacts(NamedTuple):
    """Fields of a cut row, which names the checkpoint at which a copy's hour rows hold.

    Attributes:
        cut: offset of the checkpoint record in the checkpoint topic's partition.
        cut_ms: time at which the broker appended the checkpoint, epoch milliseconds.
        epoch: epoch of the owner that wrote the checkpoint.
        commit: number of the checkpoint among those of that owner.
        cursor: cursor of the shard in that checkpoint.
        stored: S, the next source offset that the copy will store.
        from_ms: start of the first minute in the hour rows, epoch milliseconds.
        totals: number of hours that have records, and number and hash of the records of all hour
            rows together.
        pending: approximate number of pending records, including those with key times before
            ``from_ms``, which the hour rows leave out.
        scanned_ms: start of the last complete scan, epoch milliseconds; 0: there was no scan yet.
        behind: whether the copy can't be compared at the cut, usually because it has not stored all
            records below H.
        role: ``owner`` or ``replica``: role of the node in the slice.
        store: kind of the copy's store, such as ``wheel``.
        damaged: ranges of the copy that the last scan could not read.
        at_ms: time of the row by the node's clock, epoch milliseconds.
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


def hour_row(place: CopyId, cut: int, hour: HourRow) -> DigestRow:
    """Return the row of one hour of a copy, a tombstone if the hour is empty. ``cut``: offset of
    the checkpoint at which the row holds.
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


def cut_row(place: CopyId, facts: CutFacts) -> DigestRow:
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


def retired_row(place: CopyId) -> DigestRow:
    """Return the tombstone of a copy's cut row, for a copy that the node no longer stores."""
    return place.cut_key, None
