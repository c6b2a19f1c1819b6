"""The ledger: narrow rows of source records and of what settles them, made on the executors.

A plain record is numbers only, its content a hash; what else has to be known of the others is
packed in ``more`` (``SourceFacts`` or ``OutputFacts``). Rows of one delay record have the same
``shard`` and ``offset``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from connectors.spark.decode import (
    NO_KEY,
    ShardReader,
    claim_of,
    headers_of,
    key_hashes,
    readers,
    rows_of,
    runs,
    without_collector,
)
from connectors.spark.judge import (
    COPIED,
    DELIVERED,
    DISCLAIMED,
    LETTER,
    NO_TIME,
    OUTCOME,
    SOURCE,
    OutputFacts,
    SourceFacts,
)
from connectors.spark.topics import Place
from delayservice.core import names
from delayservice.core.codec import Payload
from delayservice.core.codes import COPY_FORGED
from delayservice.core.contract import Contracts
from delayservice.core.copies import CONTINUES, Claim
from delayservice.core.entry import COPY, INVALID, SCHEDULE, Entry, Headers, Row
from delayservice.core.record import STRIPPED
from delayservice.core.recurrence import recurrence_of

LEDGER: Final = (
    "shard int, offset long, role byte, key_ms long, due_ms long, at_ms long, content long, "
    "topic int, partition int, place long, key_hash int, more binary"
)
"""Rows of the ledger, for Spark.

========== ====================================== ==============================================
column     of a source record                     of what settles it
========== ====================================== ==============================================
shard      number of its delay topic's partition  of the record that it settles
offset     its own                                of the record that it settles
role       ``SOURCE``                             another of ``judge``'s roles
key_ms     its key                                0
due_ms     by the contract                        as it says; -1: it does not
at_ms      when the broker had it                 when the broker had it
content    hash that the output must have         hash of key, value and own headers
topic      number of its target topic             number of the topic that it lies in
partition  of the target; -1: by key              that it lies in
place      0                                      its own offset
key_hash   -1                                     of the key; -1: it has none
more       null: plain                            null: a plain delivery
========== ====================================== ==============================================

Rows of ``NO_SHARD`` only count what settles nothing: ``offset`` says what, ``place`` how many.
"""

NO_SHARD: Final = -1
UNMARKED: Final = 0
FOREIGN: Final = 1
COUNTED: Final = ("ordinary", "foreign")
"""By ``offset`` of rows of ``NO_SHARD``: records of no delay service, or of shards that are not
judged."""

Values: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, int, bytes | None]

_SCHEMA: Final = pa.schema(
    [
        ("shard", pa.int32()),
        ("offset", pa.int64()),
        ("role", pa.int8()),
        ("key_ms", pa.int64()),
        ("due_ms", pa.int64()),
        ("at_ms", pa.int64()),
        ("content", pa.int64()),
        ("topic", pa.int32()),
        ("partition", pa.int32()),
        ("place", pa.int64()),
        ("key_hash", pa.int32()),
        ("more", pa.binary()),
    ]
)
_Content: TypeAlias = tuple[bytes | None, bytes | None, Headers]
_Numbered: TypeAlias = tuple[int, _Content]
"""A record and its place in the batch."""

_PLAIN_END: Final = (names.DELAY_DUE_AT, names.DELAY_SOURCE, names.DELAY_SETTLES)
_OFFSET: Final = re.compile(rb"-?\d{1,18}")
_PLACE: Final = re.compile(rb"(.+:\d{1,10}):(\d{1,19})(?:#\d{1,19})?")
_SERVICE: Final = names.OUTPUT | {names.DELAY_ID}
_OUTCOME: Final = "delay-outcome"
_SETTLED_BY: Final = "delay-settled-by"
_LETTER_ONLY: Final = names.DELAY_ERROR

_pack: Final = msgspec.msgpack.Encoder().encode
_hash: Final = xxhash.xxh3_64_intdigest
_SIGN: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class Ledger:
    """Makes rows of the ledger. Sent to the executors as it is.

    Attributes:
        shards: numbers of the shards, by place.
        topics: numbers of all topics, by name.
        contracts: what the records of each shard are read by.
        ranges: offsets ``[start, stop)`` of each shard that are judged.
        roles: of outputs by the topic that they lie in; others are ``DELIVERED``.
        secrets: the cluster's, or none.
    """

    shards: Mapping[Place, int]
    topics: Mapping[str, int]
    contracts: Mapping[Place, Contracts]
    ranges: Mapping[int, tuple[int, int]]
    roles: Mapping[str, int] = field(default_factory=dict)
    secrets: Sequence[bytes] = ()

    def of_sources(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Rows of the records of delay topics, and of what the copies among them settle."""
        reading = readers(self.contracts, self.secrets)
        with without_collector():
            for batch in batches:
                for topic, partition, part in runs(batch):
                    reader = reading.get((topic, partition))
                    if reader is not None:
                        yield from self._sources(self.shards[topic, partition], topic, reader, part)

    def of_outputs(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Rows of the records of all other topics."""
        named = {f"{t}:{p}".encode(): number for (t, p), number in self.shards.items()}
        with without_collector():
            for batch in batches:
                for topic, partition, part in runs(batch):
                    yield _Outputs(self, named, topic, partition, part).rows()

    def _sources(
        self, shard: int, topic: str, reader: ShardReader, batch: pa.RecordBatch
    ) -> Iterator[pa.RecordBatch]:
        rows = rows_of(batch)
        entries = reader.read(rows)
        partition = int(batch.column("partition")[0].as_py())
        yield self._source_batch(shard, batch, entries)
        settling = [
            values
            for row, entry in zip(rows, entries, strict=True)
            if entry[1] == COPY
            for values in self.settled_by_copy(topic, partition, row)
        ]
        if settling:
            yield batch_of(settling)

    def _source_batch(
        self, shard: int, batch: pa.RecordBatch, entries: list[Entry]
    ) -> pa.RecordBatch:
        """Column by column: it is what every record goes through."""
        start, stop = self.ranges[shard]
        count = len(entries)
        topics = self.topics
        facts = [
            None if e[1] == SCHEDULE and e[4][6] is None and e[4][0] in topics else self._facts(e)
            for e in entries
        ]
        described = [_described(entry) for entry in entries]
        zeros = np.zeros(count, np.int64)
        made = pa.RecordBatch.from_arrays(
            [
                pa.array(np.full(count, shard, np.int32)),
                batch.column("offset"),
                pa.array(np.full(count, SOURCE, np.int8)),
                pa.array([entry[2] for entry in entries], pa.int64()),
                pa.array([payload[5] for payload in described], pa.int64()),
                batch.column("timestamp_ms"),
                pa.array([_content(payload) for payload in described], pa.int64()),
                pa.array([topics.get(payload[0], -1) for payload in described], pa.int32()),
                pa.array([payload[1] for payload in described], pa.int32()),
                pa.array(zeros),
                pa.array(np.full(count, NO_KEY, np.int32)),
                pa.array(facts, pa.binary()),
            ],
            schema=_SCHEMA,
        )
        first, last = entries[0][0], entries[-1][0]
        if start <= first and last < stop:
            return made
        offsets = made.column("offset").to_numpy()
        return made.filter(pa.array((offsets >= start) & (offsets < stop)))

    def _facts(self, entry: Entry) -> bytes:
        _, kind, _, record_id, payload, extra = entry
        if kind == INVALID:
            return _pack(SourceFacts(kind, code=extra[0]))
        if kind not in (SCHEDULE, COPY):
            return _pack(SourceFacts(kind, record_id))
        _, source, attempt, expires_ms, *_ = payload[6] or (None, None, 1, None)
        recurrence = recurrence_of(payload[6])
        return _pack(
            SourceFacts(
                kind,
                record_id,
                origin=(source or b"").decode(),
                base=extra if kind == COPY else 0,
                expires_ms=expires_ms,
                attempt=attempt,
                is_armed=recurrence is None or bool(recurrence.number),
                target="" if payload[0] in self.topics else payload[0],
            )
        )

    def settled_by_copy(self, topic: str, partition: int, row: Row) -> Iterator[Values]:
        """The row of what a copy says that it settles, if it does."""
        claim = claim_of(row)
        if claim is None or claim.settles == CONTINUES:
            return
        shard = self._shard_of_claim(claim, topic, partition)
        if shard is None:
            return
        payload = claim.payload
        origin = (payload[6][1] or b"").decode() if payload[6] else ""
        facts = OutputFacts(origin, target=payload[0], target_partition=payload[1])
        where = (self.topics[topic], partition, row[0])
        content = _content(payload)
        yield (
            *(shard, claim.settles, COPIED, 0, payload[5], row[1], content),
            *(*where, NO_KEY, _pack(facts)),
        )

    def _shard_of_claim(self, claim: Claim, topic: str, partition: int) -> int | None:
        if claim.shard is None:
            return self.number(topic, partition, claim.settles)
        named, _, number = claim.shard.rpartition(":")
        return self.number(named, int(number), claim.settles) if number.isdigit() else None

    def number(self, topic: str, partition: int, offset: int) -> int | None:
        """Number of a shard, if it and this offset are judged."""
        shard = self.shards.get((topic, partition))
        return shard if shard is not None and self.is_judged(shard, offset) else None

    def is_judged(self, shard: int, offset: int) -> bool:
        """Whether this offset is in the range that is judged. One below the start of the log is,
        so that it is counted.
        """
        start, stop = self.ranges[shard]
        return start <= offset < stop


class _Outputs:
    """Rows of one partition's records that are not source records."""

    def __init__(
        self,
        ledger: Ledger,
        shards: Mapping[bytes, int],
        topic: str,
        partition: int,
        batch: pa.RecordBatch,
    ) -> None:
        self._ledger = ledger
        self._shards = shards
        self._batch = batch
        self._role = ledger.roles.get(topic, DELIVERED)
        self._topic = ledger.topics[topic]
        self._partition = partition
        self._unmarked = self._foreign = 0
        self._found: list[int] = []
        self._values: list[tuple[int, int, int, int, int, bytes | None]] = []
        """``(shard, offset, role, due_ms, content, more)`` of each of ``_found``."""
        self._disclaimed: list[Values] = []

    def rows(self) -> pa.RecordBatch:
        """All of them."""
        keys = self._batch.column("key").to_pylist()
        values = self._batch.column("value").to_pylist()
        is_plain = self._take_plain if self._role == DELIVERED else _never
        for record in enumerate(zip(keys, values, headers_of(self._batch), strict=True)):
            if not is_plain(record):
                self._take(record)
        others = self._others()
        if not others:
            return self._made()
        return pa.concat_batches([self._made(), batch_of(others)])

    def _others(self) -> list[Values]:
        counted: list[Values] = [
            (NO_SHARD, what, 0, 0, 0, 0, 0, 0, 0, count, 0, None)
            for what, count in ((UNMARKED, self._unmarked), (FOREIGN, self._foreign))
            if count
        ]
        return counted + self._disclaimed

    def _made(self) -> pa.RecordBatch:
        taken = self._batch if len(self._found) == self._batch.num_rows else None
        if taken is None:
            taken = self._batch.take(pa.array(self._found, pa.int32()))
        count = taken.num_rows
        shard, offset, role, due_ms, content, more = (
            zip(*self._values, strict=True) if count else ((),) * 6
        )
        return pa.RecordBatch.from_arrays(
            [
                pa.array(shard, pa.int32()),
                pa.array(offset, pa.int64()),
                pa.array(role, pa.int8()),
                pa.array(np.zeros(count, np.int64)),
                pa.array(due_ms, pa.int64()),
                taken.column("timestamp_ms"),
                pa.array(content, pa.int64()),
                pa.array(np.full(count, self._topic, np.int32)),
                pa.array(np.full(count, self._partition, np.int32)),
                taken.column("offset"),
                pa.array(key_hashes(taken.column("key"))),
                pa.array(more, pa.binary()),
            ],
            schema=_SCHEMA,
        )

    def _take_plain(self, record: _Numbered) -> bool:
        """The short way: nearly all are plain deliveries, and end as every one of them does."""
        at, (key, value, headers) = record
        if len(headers) < len(_PLAIN_END):
            return False
        (due_name, due), (source_name, source), (settles_name, settles) = headers[-3:]
        if (due_name, source_name, settles_name) != _PLAIN_END:
            return False
        if due is None or source is None or settles is None:
            return False
        if not (due.isdigit() and settles.isdigit() and source.endswith(b":" + settles)):
            return False
        shard = self._shards.get(source[: -len(settles) - 1])
        if shard is None:
            return False
        offset = int(settles)
        start, stop = self._ledger.ranges[shard]
        if start <= offset < stop:
            content = content_hash(key, value, headers[:-3])
            self._found.append(at)
            self._values.append((shard, offset, DELIVERED, int(due), content, None))
        return True

    def _take(self, record: _Numbered) -> None:
        """The long way: any record."""
        at, content = record
        headers = content[2]
        told = dict(headers)
        settles = told.get(names.DELAY_SETTLES)
        if settles is None or not _OFFSET.fullmatch(settles):
            self._unmarked += 1
            return
        if self._role == LETTER and names.DELAY_REPLAYED in told:
            return
        offset = int(settles)
        shard = self._shard_of(told)
        if shard is None:
            self._foreign += 1
        elif offset >= 0 and self._ledger.is_judged(shard, offset):
            more, hashed = self._facts(told, content)
            self._found.append(at)
            due = told.get(names.DELAY_DUE_AT)
            due_ms = int(due) if due is not None and due.isdigit() else NO_TIME
            self._values.append((shard, offset, self._role, due_ms, hashed, more))
            if told.get(names.DELAY_ERROR) == COPY_FORGED.encode():
                self._disclaim(shard, offset, content)

    def _shard_of(self, told: Mapping[str, bytes | None]) -> int | None:
        named = told.get(names.DELAY_SHARD)
        if named is not None:
            return self._shards.get(named)
        match = _PLACE.fullmatch(told.get(names.DELAY_SOURCE) or b"")
        return self._shards.get(match[1]) if match else None

    def _facts(self, told: Mapping[str, bytes | None], content: _Content) -> tuple[bytes, int]:
        """What is packed, and the hash of the content."""
        key, value, headers = content
        origin = _text(told, names.DELAY_SOURCE)
        if self._role == OUTCOME:
            by = _number(told, _SETTLED_BY)
            return _pack(OutputFacts(origin, outcome=_text(told, _OUTCOME), by=by)), 0
        if self._role != LETTER:
            own = [header for header in headers if header[0] not in _SERVICE]
            facts = OutputFacts(origin, by=_number(told, names.DELAY_FIRED_BY))
            return _pack(facts), content_hash(key, value, own)
        own = [header for header in headers if header[0] not in STRIPPED]
        whole = _written(headers)
        facts = OutputFacts(
            origin,
            code=_text(told, names.DELAY_ERROR),
            is_bare=key is None and value is None and not whole,
            whole_hash=content_hash(key, value, whole),
        )
        return _pack(facts), content_hash(key, value, own)

    def _disclaim(self, shard: int, offset: int, content: _Content) -> None:
        """The service says that the copy at ``offset`` is forged: what it claims does not count."""
        key, value, headers = content
        place = next(place for place, number in self._ledger.shards.items() if number == shard)
        forged: Row = (offset, 0, key, value, _written(headers))
        for values in self._ledger.settled_by_copy(*place, forged):
            self._disclaimed.append((*values[:2], DISCLAIMED, *values[3:]))


def _never(_: _Numbered) -> bool:
    return False


def _described(entry: Entry) -> Payload:
    """What an entry asks for; of what asks for no delivery, its content only."""
    if entry[1] <= COPY:
        return entry[4]  # type: ignore[no-any-return]  # as ``Entry`` says
    key, value, headers = entry[4]
    return ("", -1, key, value, headers, 0, None)


def _content(payload: Payload) -> int:
    return content_hash(payload[2], payload[3], payload[4])


def content_hash(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """64 bits that are the same for the same key, value and headers only, signed as Spark's are."""
    return (_hash(_pack((key, value, headers))) ^ _SIGN) - _SIGN


def _written(headers: Headers) -> Headers:
    """A dead letter's headers as its record had them: without those that say why."""
    last = max((n for n, (name, _) in enumerate(headers) if name == _LETTER_ONLY), default=None)
    return headers[:last]


def _text(told: Mapping[str, bytes | None], name: str) -> str:
    return (told.get(name) or b"").decode("utf-8", "replace")


def _number(told: Mapping[str, bytes | None], name: str) -> int:
    text = told.get(name)
    return int(text) if text is not None and text.isdigit() else -1


def batch_of(values: Sequence[Values]) -> pa.RecordBatch:
    """Rows as a batch."""
    columns: list[Sequence[Any]] = list(zip(*values, strict=True))
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
