"""The records of the digest topic: JSON, for Spark and for people.
``docs/internals/digests.md`` has them.

An hour row says what one copy has pending in one hour; the cut row, written after the hour rows
that changed, says at which checkpoint all of them hold. ``life`` is new whenever a copy begins to
publish from nothing: rows of an earlier life are no part of it.
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
    """Node and shard of a copy."""

    node: str
    topic: str
    topic_id: str
    partition: int
    life: str

    @property
    def cut_key(self) -> bytes:
        """Key of its cut row."""
        return f"c/{self.node}/{self.topic}/{self.partition}".encode()


class Unreadable(NamedTuple):
    """Keys ``[start_ms, stop_ms)`` that the disk did not give back, of these offsets."""

    start_ms: int
    stop_ms: int
    first_offset: int
    stop_offset: int
    why: str


class CutFacts(NamedTuple):
    """The fields of a cut row beside its place.

    Attributes:
        cut: offset of the checkpoint in its partition of the checkpoint topic.
        cut_ms: when the broker appended it.
        epoch: of the owner that wrote it.
        commit: which of the owner's commits it is.
        cursor: K and H of the shard.
        stored: S of the copy.
        from_ms: slots below are not in the rows.
        totals: hours, records and hash of all rows together.
        pending: records that wait in the copy, those in slots below ``from_ms`` included; about,
            for the minute that K is in counts as a whole.
        scanned_ms: when the last complete scan of the disk began; 0: there was none yet.
        behind: the copy has not come as far as the cut, so its rows say nothing.
        role: ``owner`` or ``replica``.
        store: kind of its store.
        damaged: what the scan could not read.
        at_ms: the node's clock.
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
    """Return the row of one hour of a copy; a tombstone when the hour is empty."""
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
    """Return the row that says what all hour rows of a copy's life, up to here, are true of."""
    hours, count, hashed = facts.totals
    return place.cut_key, _encode(
        {
            "v": VERSION,
            **place._asdict(),
            "cut": facts.cut,
            "cut_ms": facts.cut_ms,
            "epoch": facts.epoch,
            "commit": facts.commit,
            "k": facts.cursor.key,
            "h": facts.cursor.offset,
            "stored": facts.stored,
            "from_ms": facts.from_ms,
            "hours": hours,
            "count": count,
            "hash": f"{hashed:016x}",
            "pending": facts.pending,
            "scanned_ms": facts.scanned_ms,
            "behind": facts.behind,
            "role": facts.role,
            "store": facts.store,
            "damaged": [damage._asdict() for damage in facts.damaged],
            "at_ms": facts.at_ms,
        }
    )


def retired_row(place: Place) -> Row:
    """Return the row of a node that keeps no copy of the shard any more."""
    return place.cut_key, None
