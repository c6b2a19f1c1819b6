"""The ledger: narrow rows of source records and of what settles them.

A plain record is numbers only, its content a hash; what else has to be known of the others is
packed in ``more`` (``SourceFacts`` or ``OutputFacts``). Rows of one delay record have the same
``shard`` and ``offset``. ``native`` makes the plain ones by column expressions, ``sources`` and
``outputs`` all others in Python.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa
import xxhash

from connectors.spark.common.cut import Cut
from connectors.spark.common.decode import NO_KEY, HashedValue, claim_of, envelope_of, waiting
from connectors.spark.common.topics import Place
from connectors.spark.ledger.facts import (
    ARRIVED,
    CONTINUED,
    COPIED,
    FORWARDED,
    LETTER,
    OUTCOME,
    OutputFacts,
)
from delayservice.core.codec import packed_recurrence
from delayservice.core.contract import Contracts
from delayservice.core.copies import CONTINUES, Claim
from delayservice.core.entry import Headers, Row
from delayservice.core.home import Group, taken_along

LEDGER: Final = (
    "shard long, offset long, role byte, key_ms long, due_ms long, at_ms long, content long, "
    "topic long, partition int, place long, key_hash int, id_hash long, more binary"
)
"""Columns of the ledger, for Spark.

========== ====================================== ==============================================
column     of a source record                     of what settles it
========== ====================================== ==============================================
shard      hash of ``topic:partition``            of the record that it settles
offset     its own                                of the record that it settles
role       ``SOURCE``                             another of ``facts``'s roles
key_ms     its key                                0
due_ms     by the contract                        as it says; -1: it does not
at_ms      when the broker had it                 when the broker had it
content    hash that the output must have         hash of key, value and own headers
topic      hash of its target topic; -1: unknown  hash of the topic that it lies in
partition  of the target; -1: by key              that it lies in
place      0                                      its own offset
key_hash   of the key that its output has         of the key; -1: it has none
id_hash    of its id; 0: it has none              0
more       null: plain                            null: a plain delivery
========== ====================================== ==============================================

Of a ``REMEMBERED`` record ``key_ms`` is the role of what settled it, and ``at_ms``, ``topic``,
``partition`` and ``place`` say when and where that was written.

Rows of ``NO_SHARD`` only count what settles nothing: ``offset`` says what, ``place`` how many.
Those of ``MALFORMED`` and ``NOWHERE`` say where the output lies, and in ``more`` what is wrong.
"""

COLUMNS: Final = tuple(column.split()[0] for column in LEDGER.split(", "))

NO_SHARD: Final = -1
NO_ID: Final = 0
UNMARKED: Final = 0
FOREIGN: Final = 1
MALFORMED: Final = 2
NOWHERE: Final = 3
COUNTED: Final = ("ordinary", "foreign")
"""Names of the counts in rows of ``NO_SHARD``, by ``offset``: records of no delay service, and of
shards that are not judged."""

Values: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, int, int, bytes | None]

SCHEMA: Final = pa.schema(
    [
        ("shard", pa.int64()),
        ("offset", pa.int64()),
        ("role", pa.int8()),
        ("key_ms", pa.int64()),
        ("due_ms", pa.int64()),
        ("at_ms", pa.int64()),
        ("content", pa.int64()),
        ("topic", pa.int64()),
        ("partition", pa.int32()),
        ("place", pa.int64()),
        ("key_hash", pa.int32()),
        ("id_hash", pa.int64()),
        ("more", pa.binary()),
    ]
)
ORIGIN: Final = re.compile(r"(.+):(\d{1,9}):(\d{1,18})(?:#\d{1,18})?", re.ASCII)
"""``delay-source``: topic, partition, offset."""

pack: Final = msgspec.msgpack.Encoder().encode
"""Facts to bytes."""
_output_facts: Final = msgspec.msgpack.Decoder(OutputFacts).decode

_hash: Final = xxhash.xxh64_intdigest
_SEED: Final = 42
_SIGN: Final = 1 << 63
_ABSENT: Final = (struct.pack("<i", 0), struct.pack("<i", 1))
_signed_long: Final = struct.Struct("<q").pack


@dataclass(frozen=True, slots=True)
class Ledger:
    """Parameters by which executors make rows; sent to them as it is.

    Attributes:
        shards: hashes of the shards that are judged, by place.
        topics: hashes of all topics of the cluster, by name.
        contracts: what the records of each shard are read by, judged or not.
        partitions: how many each delay topic has.
        roles: of outputs by the topic that they lie in; others are ``DELIVERED``.
        secrets: the cluster's, or none.
    """

    shards: Mapping[Place, int]
    topics: Mapping[str, int]
    contracts: Mapping[Place, Contracts]
    partitions: Mapping[str, int] = field(default_factory=dict)
    roles: Mapping[str, int] = field(default_factory=dict)
    secrets: Sequence[bytes] = ()

    @classmethod
    def of(cls, cut: Cut, secrets: Sequence[bytes] = ()) -> Ledger:
        """Return the parameters for the shards of a cut."""
        shards = {shard.place: shard for shard in cut.shards}
        return cls(
            shards={place: name_hash(shard.name) for place, shard in shards.items()},
            topics={name: name_hash(name) for name in cut.partitions},
            contracts={place: shard.contracts for place, shard in shards.items()},
            partitions={topic: cut.partitions[topic] for topic in cut.delay_topics},
            roles={cut.dead_letter: LETTER, cut.outcomes: OUTCOME},
            secrets=tuple(secrets),
        )

    def said_by(self, place: Place, row: Row) -> Iterator[Values]:
        """Yield rows of what the copy or envelope at ``place`` says that it settles, continues or
        brings home.
        """
        claim = claim_of(row)
        if claim is None:
            yield from self._said_by_envelope(place, row)
        elif claim.payload[0] == place[0]:
            yield from self._said_by_waiting(place, row, claim)
        else:
            yield from self._said_by_copy(place, row, claim)

    def _said_by_envelope(self, place: Place, row: Row) -> Iterator[Values]:
        arrived = envelope_of(row)
        if arrived is None:
            return
        topic, _, number = arrived.shard.rpartition(":")
        settled = (self.shards.get((topic, int(number))), arrived.settles)
        written = self._place_of(arrived.sent.source.decode("utf-8", "replace"))
        facts = _going_home((arrived.sent,))
        content = content_hash(*arrived.sent.original)
        said = [(FORWARDED, *settled)] if arrived.settles >= 0 else []
        said += [(ARRIVED, *written)] if written != settled else []
        for role, shard, offset in said:
            if shard is not None:
                what = (shard, offset, role, 0, 0, row[1], content, self.topics[place[0]])
                yield (*what, place[1], row[0], NO_KEY, NO_ID, pack(facts))

    def _said_by_waiting(self, place: Place, row: Row, claim: Claim) -> Iterator[Values]:
        """A copy that waits for its home settles what it was made of, and beside that the waiting
        copy that it took along.
        """
        group, shard = waiting(claim.payload), self.shards.get(place)
        if group is None or shard is None:
            return
        target, partition, _, _, _, _, meta = claim.payload
        for offset, held in ((claim.settles, group), (taken_along(claim.payload), group[:-1])):
            if offset < 0:
                continue
            facts = msgspec.structs.replace(
                _going_home(held),
                target=target,
                target_partition=partition,
                record_id=meta[0] if meta else None,
                base=claim.base,
            )
            content = content_hash(*held[-1].original) if held else 0
            what = (shard, offset, COPIED, 0, 0, row[1], content, self.topics[place[0]])
            yield (*what, place[1], row[0], NO_KEY, NO_ID, pack(facts))

    def _said_by_copy(self, place: Place, row: Row, claim: Claim) -> Iterator[Values]:
        origin = ((claim.payload[6] or (None, None))[1] or b"").decode()
        if claim.settles == CONTINUES:
            role, shard, offset = CONTINUED, *self._place_of(origin)
        else:
            role, shard, offset = COPIED, self._shard_of_claim(claim, place), claim.settles
        if shard is None:
            return
        target, partition, key, value, own, due_ms, meta = claim.payload
        facts = OutputFacts(
            origin,
            target=target,
            target_partition=partition,
            record_id=meta[0] if meta else None,
            expires_ms=meta[3] if meta else None,
            recur=packed_recurrence(meta) or b"",
            base=claim.base if self.shards.get(place) == shard else -1,
        )
        what = (shard, offset, role, 0, due_ms, row[1], content_hash(key, value, own))
        yield (*what, self.topics[place[0]], place[1], row[0], NO_KEY, NO_ID, pack(facts))

    def _shard_of_claim(self, claim: Claim, place: Place) -> int | None:
        if claim.shard is None:
            return self.shards.get(place)
        topic, _, number = claim.shard.rpartition(":")
        return self.shards.get((topic, int(number)))

    def _place_of(self, origin: str) -> tuple[int | None, int]:
        """Return shard and offset of a record, by its ``delay-source``."""
        match = ORIGIN.fullmatch(origin)
        if match is None:
            return None, 0
        return self.shards.get((match[1], int(match[2]))), int(match[3])


def _going_home(group: Group) -> OutputFacts:
    """Facts of the last of what goes home together; of nothing, those of a plain output."""
    if not group:
        return OutputFacts()
    last = group[-1]
    return OutputFacts(
        last.source.decode("utf-8", "replace"),
        acts=last.kind,
        first_ms=last.written_ms,
        group=group_hash(group),
    )


def unverified(said: Values) -> Values:
    """Return a row of what a copy or envelope says whose signature no secret made."""
    facts = msgspec.structs.replace(_output_facts(said[12] or b""), is_verified=False)
    return (*said[:12], pack(facts))


def group_hash(group: Group) -> int:
    """Return a hash of all records that wait together, signed as Spark's are."""
    return _signed(_hash(pack(group), _SEED))


def name_hash(name: str) -> int:
    """Return the hash by which the ledger names a topic, or a shard (``topic:partition``)."""
    return _signed(_hash(name.encode(), _SEED))


def id_hash(record_id: bytes | None) -> int:
    """Return the hash of an id, which is never ``NO_ID``."""
    return NO_ID if record_id is None else _signed(_hash(record_id, _SEED) | 1)


def content_hash(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return 64 bits that are the same for the same key, value and headers.

    Source: ``native.content``, which computes the same by column expressions: Spark's ``xxhash64``
    of several columns is XXH64 of each, with the hash of those before as its seed.
    """
    hashed = _hash(_ABSENT[key is None], _SEED)
    if key is not None:
        hashed = _hash(key, hashed)
    hashed = _hash(_ABSENT[value is None], hashed)
    if value is not None:
        hashed = _hash(value if isinstance(value, HashedValue) else value_hash(value), hashed)
    for name, text in headers:
        hashed = _hash(name.encode(), hashed)
        if text is not None:
            hashed = _hash(text, hashed)
    return _signed(hashed)


def value_hash(value: bytes) -> bytes:
    """Return the hash of a value as Spark's ``xxhash64`` has it: eight bytes, little-endian."""
    return _signed_long(_signed(_hash(value, _SEED)))


def _signed(hashed: int) -> int:
    return (hashed ^ _SIGN) - _SIGN


def batch_of(values: Sequence[Values]) -> pa.RecordBatch:
    """Rows as a batch."""
    columns: list[Sequence[Any]] = list(zip(*values, strict=True)) or [()] * len(SCHEMA)
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
