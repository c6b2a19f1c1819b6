"""Rows of the ledger that outputs make: deliveries, dead letters and outcomes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from connectors.spark.decode import Run, headers_of, key_hashes, runs, without_collector
from connectors.spark.ledger.facts import (
    DELIVERED,
    DISCLAIMED,
    LETTER,
    NO_TIME,
    OUTCOME,
    OutputFacts,
)
from connectors.spark.ledger.rows import (
    FOREIGN,
    NO_SHARD,
    SCHEMA,
    UNMARKED,
    Ledger,
    Values,
    batch_of,
    content_hash,
    pack,
)
from delayservice.core import names
from delayservice.core.codes import COPY_FORGED
from delayservice.core.entry import Headers, Row
from delayservice.core.record import STRIPPED

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


@dataclass(frozen=True, slots=True)
class OutputRows:
    """Makes rows of the records of all but delay topics. Sent to the executors as it is."""

    ledger: Ledger

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Rows of what settles records that are judged, and counts of the rest."""
        named = {f"{t}:{p}".encode(): number for (t, p), number in self.ledger.shards.items()}
        with without_collector():
            for batch in batches:
                for run in runs(batch):
                    yield _Outputs(self.ledger, named, run).rows()


class _Outputs:
    """Rows of one partition's records that are not source records."""

    def __init__(self, ledger: Ledger, shards: Mapping[bytes, int], run: Run) -> None:
        self._ledger = ledger
        self._shards = shards
        self._batch = run.batch
        self._role = ledger.roles.get(run.topic, DELIVERED)
        self._topic = ledger.topics[run.topic]
        self._partition = run.partition
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
            schema=SCHEMA,
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
            return pack(OutputFacts(origin, outcome=_text(told, _OUTCOME), by=by)), 0
        if self._role != LETTER:
            own = [header for header in headers if header[0] not in _SERVICE]
            facts = OutputFacts(origin, by=_number(told, names.DELAY_FIRED_BY))
            return pack(facts), content_hash(key, value, own)
        own = [header for header in headers if header[0] not in STRIPPED]
        whole = _written(headers)
        facts = OutputFacts(
            origin,
            code=_text(told, names.DELAY_ERROR),
            is_bare=key is None and value is None and not whole,
            whole_hash=content_hash(key, value, whole),
        )
        return pack(facts), content_hash(key, value, own)

    def _disclaim(self, shard: int, offset: int, content: _Content) -> None:
        """The service says that the copy at ``offset`` is forged: what it claims does not count."""
        key, value, headers = content
        place = next(place for place, number in self._ledger.shards.items() if number == shard)
        forged: Row = (offset, 0, key, value, _written(headers))
        for values in self._ledger.settled_by_copy(place, forged):
            self._disclaimed.append((*values[:2], DISCLAIMED, *values[3:]))


def _never(_: _Numbered) -> bool:
    return False


def _written(headers: Headers) -> Headers:
    """A dead letter's headers as its record had them: without those that say why."""
    last = max((n for n, (name, _) in enumerate(headers) if name == _LETTER_ONLY), default=None)
    return headers[:last]


def _text(told: Mapping[str, bytes | None], name: str) -> str:
    return (told.get(name) or b"").decode("utf-8", "replace")


def _number(told: Mapping[str, bytes | None], name: str) -> int:
    text = told.get(name)
    return int(text) if text is not None and text.isdigit() else -1
