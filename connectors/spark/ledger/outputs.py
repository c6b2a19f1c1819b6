"""Rows of the ledger that outputs make: deliveries, dead letters and outcomes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from connectors.spark.common.decode import Run, headers_of, key_hashes, runs, without_collector
from connectors.spark.common.topics import Place
from connectors.spark.ledger.facts import (
    DELIVERED,
    DISCLAIMED,
    LETTER,
    OUTCOME,
    OutputFacts,
)
from connectors.spark.ledger.rows import (
    FOREIGN,
    MALFORMED,
    NO_SHARD,
    NOWHERE,
    SCHEMA,
    UNMARKED,
    Ledger,
    Values,
    batch_of,
    content_hash,
    pack,
)
from delayservice.core import names
from delayservice.core.aliases import STRIPPED
from delayservice.core.codes import COPY_FORGED
from delayservice.core.copies import CONTINUES
from delayservice.core.entry import Headers, Row

_Content: TypeAlias = tuple[bytes | None, bytes | None, Headers]
_Numbered: TypeAlias = tuple[int, _Content]
"""A record and its place in the batch."""

_PLAIN_END: Final = (names.DELAY_DUE_AT, names.DELAY_SOURCE, names.DELAY_SETTLES)
_COUNT: Final = re.compile(rb"\d{1,18}")
_OFFSET: Final = re.compile(rb"-?\d{1,18}")
_SHARD: Final = re.compile(rb"([a-zA-Z0-9._-]{1,249}):(\d{1,9})")
_PLACE: Final = re.compile(_SHARD.pattern + rb":\d{1,19}(?:#\d{1,19})?")
_SERVICE: Final = names.OUTPUT | {names.DELAY_ID}
_LETTER_ONLY: Final = names.DELAY_ERROR
_LEFT_OUT: Final = b" are left out, "
"""Part of the detail of a dead letter that had to leave out its content."""


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
        self._others: list[Values] = []

    def rows(self) -> pa.RecordBatch:
        """All of them."""
        keys = self._batch.column("key").to_pylist()
        values = self._batch.column("value").to_pylist()
        is_plain = self._take_plain if self._role == DELIVERED else _never
        for record in enumerate(zip(keys, values, headers_of(self._batch), strict=True)):
            if not is_plain(record):
                self._take(record)
        self._others += [
            (NO_SHARD, what, 0, 0, 0, 0, 0, 0, 0, count, 0, None)
            for what, count in ((UNMARKED, self._unmarked), (FOREIGN, self._foreign))
            if count
        ]
        made = self._made()
        return pa.concat_batches([made, batch_of(self._others)]) if self._others else made

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
        are_numbers = _COUNT.fullmatch(due) and _COUNT.fullmatch(settles)
        if not (are_numbers and source.endswith(b":" + settles)):
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
        """The long way: any record. What it says, any producer may have written."""
        at, content = record
        headers = content[2]
        told = dict(headers)
        settles = told.get(names.DELAY_SETTLES)
        if settles is None:
            self._unmarked += 1
            return
        if not _OFFSET.fullmatch(settles) or int(settles) < CONTINUES:
            self._note(at, MALFORMED, f"{names.DELAY_SETTLES} is no offset")
            return
        offset = int(settles)
        place = self._place_of(told)
        if place is None:
            self._note(at, MALFORMED, f"{names.DELAY_SETTLES} is there, and no place that it is of")
            return
        shard = self._ledger.shards.get(place)
        if shard is None:
            self._take_foreign(at, place)
        elif offset >= 0 and self._ledger.is_judged(shard, offset):
            due_ms, hashed, facts = self._facts(told, content)
            self._found.append(at)
            self._values.append((shard, offset, self._role, due_ms, hashed, pack(facts)))
            if self._role == LETTER and facts.code == COPY_FORGED:
                self._disclaim(shard, offset, content)

    def _take_foreign(self, at: int, place: Place) -> None:
        """An output of a shard that is not judged, or that can't be."""
        topic, partition = place
        count = self._ledger.partitions.get(topic)
        if count is None or partition < count:
            self._foreign += 1
        else:
            why = f"it says that it settles a record of {topic}:{partition}, and there is no such"
            self._note(at, NOWHERE, f"{why} partition")

    def _note(self, at: int, what: int, why: str) -> None:
        """A row about the output itself."""
        offset = self._batch.column("offset")[at].as_py()
        at_ms = self._batch.column("timestamp_ms")[at].as_py()
        place = (self._topic, self._partition, offset)
        self._others.append((NO_SHARD, what, 0, 0, 0, at_ms, 0, *place, 0, why.encode()))

    def _place_of(self, told: Mapping[str, bytes | None]) -> Place | None:
        """The shard that ``delay-settles`` is an offset of; None: that can't be read."""
        named = told.get(names.DELAY_SHARD)
        pattern = _PLACE if named is None else _SHARD
        text = named if named is not None else told.get(names.DELAY_SOURCE)
        match = pattern.fullmatch(text or b"")
        return None if match is None else (match[1].decode("ascii"), int(match[2]))

    def _facts(
        self, told: Mapping[str, bytes | None], content: _Content
    ) -> tuple[int, int, OutputFacts]:
        """Its due time, the hash of its content, and the rest."""
        key, value, headers = content
        origin = _text(told, names.DELAY_SOURCE)
        due_ms = _number(told, names.DELAY_DUE_AT)
        if self._role == OUTCOME:
            by = _number(told, names.DELAY_SETTLED_BY)
            outcome = _text(told, names.DELAY_OUTCOME)
            by_source = _text(told, names.DELAY_SETTLED_BY_SOURCE)
            facts = OutputFacts(origin, outcome=outcome, by=by, by_source=by_source)
            return due_ms, 0, facts
        if self._role != LETTER:
            own = [header for header in headers if header[0] not in _SERVICE]
            by = _number(told, names.DELAY_FIRED_BY)
            facts = OutputFacts(origin, by=by, is_mirror=_is_mirror(headers, told))
            return due_ms, content_hash(key, value, own), facts
        own = [header for header in headers if header[0] not in STRIPPED]
        whole = _written(headers)
        asked = dict(whole)
        expires = asked.get(names.DELAY_EXPIRES_AT)
        facts = OutputFacts(
            origin,
            code=_text(told, names.DELAY_ERROR),
            is_bare=key is None and value is None and not whole,
            says_bare=_LEFT_OUT in (told.get(names.DELAY_ERROR_DETAIL) or b""),
            whole_hash=content_hash(key, value, whole),
            target=_text(asked, names.DELAY_TARGET_TOPIC),
            record_id=asked.get(names.DELAY_ID),
            expires_ms=None if expires is None else _number(asked, names.DELAY_EXPIRES_AT),
        )
        return _number(asked, names.DELAY_AT), content_hash(key, value, own), facts

    def _disclaim(self, shard: int, offset: int, content: _Content) -> None:
        """The service says that the copy or envelope at ``offset`` is forged: what it claims does
        not count.
        """
        key, value, headers = content
        place = next(place for place, number in self._ledger.shards.items() if number == shard)
        forged: Row = (offset, 0, key, value, _written(headers))
        for values in self._ledger.said_by(place, forged):
            self._others.append((*values[:2], DISCLAIMED, *values[3:]))


def _never(_: _Numbered) -> bool:
    return False


def _written(headers: Headers) -> Headers:
    """A dead letter's headers as its record had them: without those that say why."""
    last = max((n for n, (name, _) in enumerate(headers) if name == _LETTER_ONLY), default=None)
    return headers[:last]


def _text(told: Mapping[str, bytes | None], name: str) -> str:
    return (told.get(name) or b"").decode("utf-8", "replace")


def _number(told: Mapping[str, bytes | None], name: str) -> int:
    """A number that fits into 64 bits; -1: there is none."""
    text = told.get(name)
    return int(text) if text is not None and _COUNT.fullmatch(text) else -1


def _is_mirror(headers: Headers, told: Mapping[str, bytes | None]) -> bool:
    """Return whether this is a dead letter or an outcome, which the service writes to no target:
    it was copied there. Users' headers may be named ``delay-outcome``, so its place
    counts.
    """
    is_outcome = headers[0][0] == names.DELAY_OUTCOME and names.DELAY_SHARD in told
    return is_outcome or names.DELAY_ERROR in told
