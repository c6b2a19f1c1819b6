"""Rows of the ledger that source records make, and the copies among them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from connectors.spark.decode import (
    NO_KEY,
    Run,
    ShardReader,
    key_hashes,
    readers,
    rows_of,
    runs,
    without_collector,
)
from connectors.spark.ledger.facts import (
    NAMED,
    SOURCE,
    SourceFacts,
)
from connectors.spark.ledger.rows import SCHEMA, Ledger, batch_of, content_hash, pack
from delayservice.core.codec import Payload, packed_recurrence
from delayservice.core.entry import COPY, INVALID, SCHEDULE, Entry, Row
from delayservice.core.names import DELAY_COPY
from delayservice.core.recurrence import recurrence_of
from delayservice.core.storing import bearing_ids


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
                rows = [row for row in rows if _claims_to_be_a_copy(row)]
            entries = reader.read(rows)
            yield from self._copies(run, rows, entries)
            if shard is not None:
                yield from self._named(shard, entries)

    def _named(self, shard: int, entries: Sequence[Entry]) -> Iterator[pa.RecordBatch]:
        """Rows of records that bear an id and are not judged: they may cancel what is."""
        named = [
            (shard, e[0], NAMED, e[2], 0, 0, 0, -1, -1, 0, NO_KEY, self._facts(e))
            for _, e in bearing_ids(entries)
        ]
        if named:
            yield batch_of(named)

    def _parted(
        self, shard: int | None, batch: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """What is judged, and the rest, in which only copies count."""
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
            if entry[1] == COPY
            for values in self.ledger.said_by_copy(place, row)
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
        topics = self.ledger.topics
        facts = [
            None
            if e[1] == SCHEDULE and e[4][6] is None and e[4][0] in topics
            else self._facts(e, is_verified=e[0] not in believed)
            for e in entries
        ]
        described = [_described(entry) for entry in entries]
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

    def _facts(self, entry: Entry, *, is_verified: bool = True) -> bytes:
        _, kind, _, record_id, payload, extra = entry
        if kind == INVALID:
            return pack(SourceFacts(kind, code=extra[0]))
        if kind not in (SCHEDULE, COPY):
            return pack(SourceFacts(kind, record_id))
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


def _claims_to_be_a_copy(row: Row) -> bool:
    return any(name == DELAY_COPY for name, _ in row[4] or ())


def _described(entry: Entry) -> Payload:
    """What an entry asks for; of what asks for no delivery, its content only."""
    if entry[1] <= COPY:
        return entry[4]  # type: ignore[no-any-return]  # as ``Entry`` says
    key, value, headers = entry[4]
    return ("", -1, key, value, headers, 0, None)
