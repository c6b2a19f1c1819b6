"""Defines the ledger: short rows of source records and of the outputs that settle them.

A row of a usual record consists of numbers, with the content as a hash. Other records have further
facts, packed in ``more`` (``SourceFacts`` or ``OutputFacts``). Rows of a source record and of its
outputs have the same ``shard`` and ``offset``. ``native`` makes nearly all rows by column
expressions, ``sources`` and ``outputs`` the others in Python.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import xxhash

from connectors.spark.common import frames
from connectors.spark.common.cut import Cut
from connectors.spark.common.decode import NO_KEY, HashedValue
from connectors.spark.common.topics import Place
from connectors.spark.ledger.facts import LETTER, OUTCOME
from delayservice.contract.contracts import Contracts
from delayservice.contract.entry import SCHEDULE, Headers
from delayservice.contract.home import Group

TYPES: Final = {
    "shard": "long",
    "offset": "long",
    "role": "byte",
    "kind": "byte",
    "key_ms": "long",
    "due_ms": "long",
    "at_ms": "long",
    "content": "long",
    "topic": "long",
    "partition": "int",
    "place": "long",
    "key_hash": "int",
    "by": "long",
    "id_hash": "long",
    "id": "binary",
    "more": "binary",
}

LEDGER: Final = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
"""Columns of the ledger, as a Spark schema.

========== ====================================== ==============================================
column     of a source record                     of an output that settles a record
========== ====================================== ==============================================
shard      hash of ``topic:partition``            hash of the settled record's shard
offset     offset of the record                   offset of the settled record
role       ``SOURCE``                             another role in ``facts``
kind       its kind, as in ``contract.entry``     for an outcome: index in ``OUTCOME_NAMES``
key_ms     time of its key, epoch ms              0
due_ms     due time by the contract, epoch ms     due time that it states; -1: not stated
at_ms      when the broker appended it, epoch ms  when the broker appended it, epoch ms
content    hash that the output must have         hash of key, value and the user's headers
topic      hash of its target topic; -1: unknown  hash of the topic that the output is in
partition  target partition; -1: by key           partition that the output is in
place      0                                      offset of the output
key_hash   hash of the key of its output          hash of its key; -1: it has no key
by         -1                                     for an outcome: canceller's offset; -1: none
id_hash    hash of its id; 0: it has no id        hash of the id that it names; 0: none
id         its id; null: it has no id             null
more       further facts; null: none              further facts; null: none
========== ====================================== ==============================================

For a ``REMEMBERED`` record, ``kind`` is the role of its settlement (or a negative number, as in
``audit.verdicts``), and ``at_ms``, ``topic``, ``partition`` and ``place`` are the time and place of
its settlement; ``due_ms`` is the number of the cut at which it was judged.

Rows with ``NO_SHARD`` as ``shard`` are for outputs that settle nothing; ``offset`` is their kind.
``UNMARKED`` and ``FOREIGN`` rows count outputs: ``place`` is their number. ``MALFORMED`` and
``NOWHERE`` rows have the place of one output; ``more`` is the text of the error.
"""

COLUMNS: Final = tuple(TYPES)
SCHEMA: Final = frames.arrow_schema(LEDGER)

NO_SHARD: Final = -1
NO_TOPIC: Final = -1
NO_ID: Final = 0
UNMARKED: Final = 0
FOREIGN: Final = 1
MALFORMED: Final = 2
NOWHERE: Final = 3
"""Values of ``offset`` in rows whose ``shard`` is ``NO_SHARD``. ``UNMARKED``: records of other
producers; ``FOREIGN``: outputs of shards that are not judged; ``MALFORMED``: an output whose
headers can't be read; ``NOWHERE``: an output that names a partition that does not exist."""
# Names of the counts that rows of UNMARKED and FOREIGN add to, in this order.
COUNTED: Final = ("ordinary", "foreign")


class LedgerRow(NamedTuple):
    shard: int
    offset: int
    role: int
    kind: int = SCHEDULE
    key_ms: int = 0
    due_ms: int = 0
    at_ms: int = 0
    content: int = 0
    topic: int = NO_TOPIC
    partition: int = -1
    place: int = 0
    key_hash: int = NO_KEY
    by: int = -1
    id_hash: int = NO_ID
    id: bytes | None = None
    more: bytes | None = None


_ORIGIN: Final = re.compile(r"(.+):(\d{1,9}):(\d{1,18})(?:#\d{1,18})?", re.ASCII)

pack: Final = msgspec.msgpack.Encoder().encode

_hash: Final = xxhash.xxh64_intdigest
_SEED: Final = 42
_SIGN: Final = 1 << 63
_ABSENT: Final = (struct.pack("<i", 0), struct.pack("<i", 1))
_signed_long: Final = struct.Struct("<q").pack


@dataclass(frozen=True, slots=True)
class Ledger:
    """Names and contracts by which executors make ledger rows; ``shards`` and ``topics`` are
    hashes. ``roles``: role of outputs by the name of their topic; in other topics ``DELIVERED``.
    """

    shards: Mapping[Place, int]
    topics: Mapping[str, int]
    contracts: Mapping[Place, Contracts]
    partitions: Mapping[str, int] = field(default_factory=dict)
    roles: Mapping[str, int] = field(default_factory=dict)
    secrets: Sequence[bytes] = ()

    @classmethod
    def of(cls, cut: Cut, secrets: Sequence[bytes] = ()) -> Ledger:
        shards = {shard.place: shard for shard in cut.shards}
        return cls(
            shards={place: name_hash(shard.name) for place, shard in shards.items()},
            topics={name: name_hash(name) for name in cut.partitions},
            contracts={place: shard.contracts for place, shard in shards.items()},
            partitions={topic: cut.partitions[topic] for topic in cut.delay_topics},
            roles={cut.dead_letter: LETTER, cut.outcomes: OUTCOME},
            secrets=tuple(secrets),
        )

    def shard_of(self, origin: str) -> tuple[int | None, int]:
        """Return the hash of the shard, None if it is not judged, and the offset in a
        ``delay-source``.
        """
        match = _ORIGIN.fullmatch(origin)
        if match is None:
            return None, 0
        return self.shards.get((match[1], int(match[2]))), int(match[3])


def group_hash(group: Group) -> int:
    return _signed(_hash(pack(group), _SEED))


def name_hash(name: str) -> int:
    """Return the hash of a topic or shard (``topic:partition``), a signed number of 64 bits."""
    return _signed(_hash(name.encode(), _SEED))


def id_hash(record_id: bytes | None) -> int:
    """Return the hash of an id, a signed number of 64 bits; ``NO_ID`` only if there is no id."""
    return NO_ID if record_id is None else _signed(_hash(record_id, _SEED) | 1)


def content_hash(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return a hash of key, value and headers of a record, as a signed number of 64 bits.

    ``expressions.content`` computes the same hash by column expressions: Spark's ``xxhash64`` of
    several columns is XXH64 of each one, with the hash of the columns before it as the seed.
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
    """Return the eight bytes of Spark's ``xxhash64`` of a value, little-endian."""
    return _signed_long(_signed(_hash(value, _SEED)))


def _signed(hashed: int) -> int:
    return (hashed ^ _SIGN) - _SIGN


def batch_of(rows: Iterable[Sequence[Any]]) -> pa.RecordBatch:
    return frames.batch_of(rows, SCHEMA)
