"""Rows of the ledger that source records make, and the copies among them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from connectors.spark.common.decode import (
    NO_KEY,
    Run,
    ShardReader,
    envelope_of,
    key_hashes,
    readers,
    rows_of,
    runs,
    waiting,
    without_collector,
)
from connectors.spark.ledger.facts import (
    NAMED,
    SOURCE,
    SourceFacts,
)
from connectors.spark.ledger.kinds import WAITING
from connectors.spark.ledger.rows import (
    SCHEMA,
    Ledger,
    batch_of,
    content_hash,
    group_hash,
    pack,
)
from delayservice.core.codec import Payload, packed_recurrence
from delayservice.core.entry import COPY, HOMEBOUND, INVALID, SCHEDULE, Entry, Row
from delayservice.core.home import Group, homebound
from delayservice.core.names import DELAY_COPY, DELAY_HOME
from delayservice.core.recurrence import recurrence_of
from delayservice.core.storing import bearing_ids

_CODE_AND_DETAIL: Final = 2
"""Parts of a refusal; of what has come home there are more, the last is its source."""


@dataclass(frozen=True, slots=True)
class SourceRows:
    """Makes rows of the records of delay topics. Sent to the executors as it is."""

    ledger: Ledger

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Rows of the records that are judged, and of what copies settle, wherever those are."""
        reading = readers(self.ledger.contracts, self.ledger.secrets)
        with without_collector():
            for batch in batches:
                for run in runs(batch):
                    reader = reading.get((run.topic, run.partition))
                    if reader is not None:
                        yield from self._of_run(run, reader)

    def _of_run(self, run: Run, reader: ShardReader) -> Iterator[pa.RecordBatch]:
        shard = self.ledger.shards.get((run.topic, run.partition))
        judged, others = self._parted(shard, run.batch)
        if shard is not None and judged.num_rows:
            rows = rows_of(judged)
            entries = reader.read(rows)
            yield self._sources(shard, judged, entries, reader.believed)
            yield from self._copies(run, rows, entries)
        if others.num_rows:
            rows = rows_of(others)
            if shard is None:
                rows = [row for row in rows if _is_claimed(row)]
            entries = reader.read(rows)
            yield from self._copies(run, rows, entries)
            if shard is not None:
                yield from self._named(shard, entries)

    def _named(self, shard: int, entries: Sequence[Entry]) -> Iterator[pa.RecordBatch]:
        """Rows of records that bear an id and are not judged: they may cancel what is."""
        topic = self._topic(shard)
        named = [
            (shard, e[0], NAMED, e[2], 0, 0, 0, -1, -1, 0, NO_KEY, self._facts(e, topic))
            for _, e in bearing_ids(entries)
        ]
        if named:
            yield batch_of(named)

    def _parted(
        self, shard: int | None, batch: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Split a batch: rows to judge, and the rest, in which only copies and envelopes count."""
        if shard is None:
            return batch.slice(0, 0), batch
        offsets = batch.column("offset").to_numpy()
        start, stop = self.ledger.ranges[shard]
        if start <= offsets[0] and offsets[-1] < stop:
            return batch, batch.slice(0, 0)
        is_judged = (offsets >= start) & (offsets < stop)
        return batch.filter(pa.array(is_judged)), batch.filter(pa.array(~is_judged))

    def _copies(
        self, run: Run, rows: Sequence[Row], entries: Sequence[Entry]
    ) -> Iterator[pa.RecordBatch]:
        place = (run.topic, run.partition)
        settling = [
            values
            for row, entry in zip(rows, entries, strict=True)
            if entry[1] == COPY or envelope_of(row) is not None
            for values in self.ledger.said_by(place, row)
        ]
        if settling:
            yield batch_of(settling)

    def _sources(
        self,
        shard: int,
        batch: pa.RecordBatch,
        entries: Sequence[Entry],
        believed: Collection[int],
    ) -> pa.RecordBatch:
        """Column by column: it is what every record goes through."""
        count = len(entries)
        topics, topic = self.ledger.topics, self._topic(shard)
        facts = [
            None
            if e[1] == SCHEDULE and e[4][6] is None and e[4][0] in topics
            else self._facts(e, topic, is_verified=e[0] not in believed)
            for e in entries
        ]
        described = [_described(entry, topic) for entry in entries]
        zeros = np.zeros(count, np.int64)
        return pa.RecordBatch.from_arrays(
            [
                pa.array(np.full(count, shard, np.int32)),
                batch.column("offset"),
                pa.array(np.full(count, SOURCE, np.int8)),
                pa.array([entry[2] for entry in entries], pa.int64()),
                pa.array([payload[5] for payload in described], pa.int64()),
                batch.column("timestamp_ms"),
                pa.array([content_hash(*payload[2:5]) for payload in described], pa.int64()),
                pa.array([topics.get(payload[0], -1) for payload in described], pa.int32()),
                pa.array([payload[1] for payload in described], pa.int32()),
                pa.array(zeros),
                pa.array(key_hashes(pa.array([payload[2] for payload in described], pa.binary()))),
                pa.array(facts, pa.binary()),
            ],
            schema=SCHEMA,
        )

    def _topic(self, shard: int) -> str:
        return next(place[0] for place, number in self.ledger.shards.items() if number == shard)

    def _facts(self, entry: Entry, topic: str, *, is_verified: bool = True) -> bytes:
        _, kind, _, record_id, payload, extra = entry
        if kind == INVALID:
            origin = b"" if len(extra) == _CODE_AND_DETAIL else extra[-1]
            facts = SourceFacts(kind, code=extra[0], origin=_text(origin), is_verified=is_verified)
            return pack(facts)
        if kind == HOMEBOUND:
            acts, first_ms, _ = extra
            return pack(SourceFacts(kind, record_id, acts=acts, first_ms=first_ms))
        if kind not in (SCHEDULE, COPY):
            origin = extra or b""
            facts = SourceFacts(kind, record_id, origin=_text(origin), is_verified=is_verified)
            return pack(facts)
        group = _waiting(entry, topic)
        if group is not None:
            last = group[-1]
            facts = SourceFacts(
                WAITING,
                record_id,
                origin=_text(last.source),
                base=extra,
                is_verified=is_verified,
                acts=last.kind,
                first_ms=last.written_ms,
                group=group_hash(group),
            )
            return pack(facts)
        _, source, attempt, expires_ms, *_ = payload[6] or (None, None, 1, None)
        recurrence = recurrence_of(payload[6])
        return pack(
            SourceFacts(
                kind,
                record_id,
                origin=(source or b"").decode(),
                base=extra if kind == COPY else 0,
                expires_ms=expires_ms,
                attempt=attempt,
                is_armed=recurrence is None or bool(recurrence.number),
                target="" if payload[0] in self.ledger.topics else payload[0],
                recur=packed_recurrence(payload[6]) or b"",
                is_verified=is_verified,
            )
        )


def _is_claimed(row: Row) -> bool:
    """Return whether it says that it is a copy or an envelope."""
    return any(name in (DELAY_COPY, DELAY_HOME) for name, _ in row[4] or ())


def _text(source: bytes) -> str:
    return source.decode("utf-8", "replace")


def _waiting(entry: Entry, topic: str) -> Group | None:
    """Return the records that wait for their home in a copy; its target is its own delay topic."""
    _, kind, _, _, payload, _ = entry
    return waiting(payload) if kind == COPY and payload[0] == topic else None


def _described(entry: Entry, topic: str) -> Payload:
    """Return what an entry asks for; if it asks for no delivery, its content only. A record that
    goes home asks for that.
    """
    _, kind, _, record_id, payload, extra = entry
    if kind == HOMEBOUND:
        acts, first_ms, home = extra
        sent = homebound(acts, record_id or b"", b"", first_ms, payload)
        return (topic, home, *sent.original, 0, None)
    group = _waiting(entry, topic)
    if group is not None:
        return (topic, payload[1], *group[-1].original, 0, None)
    if kind <= COPY:
        return payload  # type: ignore[no-any-return]  # as ``Entry`` says
    key, value, headers = entry[4]
    return ("", -1, key, value, headers, 0, None)
