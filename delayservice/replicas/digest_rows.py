"""Records of the digest topic, as JSON; see ``docs/internals/digests.md``.

An hour row holds the digest of one copy for one hour. The cut row, written after the hour rows that
changed, names the checkpoint at which all hour rows of the copy hold. A node that begins to publish
all rows of a copy anew gives it a new random ``life``; rows with another ``life`` do not belong to
the copy.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from delayservice.base.errors import SlotDamagedError
from delayservice.replicas.digest import HourSum

VERSION: Final = 1

# Key and value of a record of the digest topic; value None: a tombstone.
DigestRow = tuple[bytes, bytes | None]


class CopyId(NamedTuple):
    """Identity of a copy: its node, its delay topic (name and id) and partition, and ``life``."""

    node: str
    topic: str
    topic_id: str
    partition: int
    life: str

    @property
    def name(self) -> str:
        return f"{self.node}/{self.topic}/{self.partition}"


class Damage(msgspec.Struct, frozen=True):
    """Range of a copy that can't be read: key times ``[start_ms, stop_ms)`` in epoch milliseconds,
    source offsets ``[first_offset, stop_offset)`` of its records and marks (None: to the end of the
    log), and a text that says why.
    """

    start_ms: int
    stop_ms: int
    first_offset: int
    stop_offset: int | None
    why: str

    @classmethod
    def of(cls, error: SlotDamagedError) -> Damage:
        return cls(error.start_ms, error.stop_ms, error.first_offset, error.stop_offset, str(error))


class CutRow(msgspec.Struct, frozen=True, kw_only=True):
    """Row that names the checkpoint at which a copy's hour rows hold.

    Attributes:
        node, topic, topic_id, partition, life: as in ``CopyId``.
        cut: offset of the checkpoint record in the checkpoint topic's partition.
        cut_ms: time at which the broker appended the checkpoint, epoch milliseconds.
        k, h: cursor of the shard in that checkpoint.
        stored: S, the next source offset that the copy will store.
        from_ms: lowest key time of the records in the hour rows, epoch milliseconds; the hour that
            contains it is in the rows from there on.
        hours, count, hash: number of hour rows with records, number of records, and sum of the
            hashes modulo 2^64 of all hour rows together, in 16 hexadecimal digits.
        pending: approximate number of pending records, including those with key times before
            ``from_ms``, which the hour rows leave out.
        behind: whether the copy can't be compared at the cut, usually because it has not stored all
            records below H.
        role: ``owner`` or ``replica``: role of the node in the slice.
        damaged: ranges of the copy that the last scan could not read.
    """

    node: str
    topic: str
    topic_id: str
    partition: int
    life: str
    cut: int
    cut_ms: int
    k: tuple[int, int]
    h: int
    stored: int
    from_ms: int
    hours: int = 0
    count: int
    hash: str
    pending: int
    behind: bool
    role: str
    damaged: tuple[Damage, ...] = ()
    v: int = VERSION


_encode = msgspec.json.Encoder().encode
_decode_cut = msgspec.json.Decoder(CutRow).decode


def hour_row(copy: CopyId, cut: int, hour: HourSum) -> DigestRow:
    """Return the row of one hour of a copy, a tombstone if the hour is empty. ``cut``: offset of
    the checkpoint at which the row holds.
    """
    key = f"h/{copy.name}/{hour.hour_ms}".encode()
    if hour.records == hour.hash == 0:
        return key, None
    said = {"hour_ms": hour.hour_ms, "count": hour.records, "hash": hash_text(hour.hash)}
    return key, _encode({"v": VERSION, **copy._asdict(), "cut": cut, **said})


def cut_row(row: CutRow) -> DigestRow:
    return cut_key(row.node, row.topic, row.partition), _encode(row)


def decode_cut(value: bytes | str) -> CutRow | None:
    """Return the cut row in the JSON text; None: it has another form or version."""
    try:
        row = _decode_cut(value)
    except (msgspec.DecodeError, ValueError):
        return None
    return row if row.v == VERSION else None


def cut_key(node: str, topic: str, partition: int) -> bytes:
    return f"c/{node}/{topic}/{partition}".encode()


def retired_row(node: str, topic: str, partition: int) -> DigestRow:
    """Return the tombstone of a copy's cut row, for a copy that the node no longer stores."""
    return cut_key(node, topic, partition), None


def hash_text(hashed: int) -> str:
    return f"{hashed:016x}"
