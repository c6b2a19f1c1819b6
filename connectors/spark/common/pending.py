"""Finds the pending records of delay topics: those that are not settled at a cursor.

The executors read the log as the service does, and return records that are pending by key, and
records with an id. ``uncancelled`` removes those that a user record of the same id cancels: one at
or after the record's base (first offset whose record may cancel it) and below H (design rules 12 to
14). The last such record decides. K and H are those of a cursor, see ``docs/glossary.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from connectors.spark.common.arrow import arrow_schema, batch_of
from connectors.spark.common.decode import ShardReader, rows_of, runs
from connectors.spark.common.topics import TASK_RECORDS, Place, Span, read_topic
from delayservice.contract.contracts import Contracts
from delayservice.contract.entry import COPY, SCHEDULE, Entry
from delayservice.contract.times import DUE_STOP_MS
from delayservice.engine.cursor import Cursor
from delayservice.engine.storing import is_user_record
from delayservice.replicas.digest import HOUR_MS

CLOCKS_MS: Final = HOUR_MS
"""Allowance for the clocks of nodes and brokers, in ms; they differ by less than half a second."""

_NEVER_MARKED: Final = -1
_SHARD: Final = ("topic", "partition")
_SIFTED: Final = arrow_schema(
    "topic string, partition int, key_ms bigint, offset bigint, record_id binary, "
    "canceller bigint, base bigint"
)
"""Columns of sifted records. ``canceller``: offset of a user record with an id, which replaces
earlier ones; ``base``: first offset whose record may replace this one."""


class LogPart(NamedTuple):
    """Part of a shard's log, and limits of the pending records to return from it.

    Attributes:
        contracts: contracts by which its records are read.
        start: first offset to read.
        stop: end of the offsets, exclusive.
        cursor: K and H; records that they have settled are left out.
        from_ms: first key to return, epoch ms.
        to_ms: end of the keys, exclusive, epoch ms.
        log_start: first offset of the log.
    """

    contracts: Contracts
    start: int
    stop: int
    cursor: Cursor
    from_ms: int = 0
    to_ms: int = DUE_STOP_MS + 1
    log_start: int = 0


class PendingColumns(NamedTuple):
    """Columns of a pending record besides its key.

    Attributes:
        schema: names and types of the columns.
        of: makes a row from an entry; sent to the executors.
    """

    schema: pa.Schema
    of: Callable[[Entry], tuple[object, ...]]

    @property
    def whole(self) -> pa.Schema:
        """All columns of sifted records."""
        return pa.schema([*_SIFTED, *self.schema])


def sift(
    spark: SparkSession,
    client: Mapping[str, str],
    parts: Mapping[Place, LogPart],
    facts: PendingColumns,
    secrets: Iterable[bytes],
    min_partitions: int,
) -> DataFrame:
    """Read parts of logs in parallel tasks, and return records that are pending or have an id.

    Returns:
        ``topic, partition, key_ms, offset, record_id, canceller, base`` and the facts. ``key_ms``
        null: not pending, and returned only for its id.
    """
    tasks = sum(part.stop - part.start for part in parts.values()) // TASK_RECORDS + 1
    spans = {place: Span(part.start, part.stop) for place, part in parts.items()}
    records = read_topic(spark, client, spans, max(min_partitions, tasks))
    sieve = _PendingSieve(dict(parts), facts, tuple(secrets))
    return records.mapInArrow(sieve.sift, from_arrow_schema(facts.whole))


def uncancelled(sifted: DataFrame) -> DataFrame:
    """Return the pending records, with the columns up to ``record_id`` and the facts."""
    named = [*_SHARD, "record_id"]
    cancellers = (
        sifted.where("canceller is not null").groupBy(*named).agg(sf.max("canceller").alias("last"))
    )
    return (
        sifted.where("key_ms is not null")
        .join(cancellers, named, "left")
        .where("last is null or last < base")
        .select(*_SHARD, "key_ms", "offset", "record_id", *sifted.columns[len(_SIFTED) :])
    )


def written_since_ms(contracts: Contracts, key_ms: int) -> int:
    """Return a time such that no record with a key of ``key_ms`` or later was appended before it.

    The key of a user record is ``min(due, appended + roll window)`` at most (``RecordReader``). The
    key of a copy is ``min(due, now + roll window)`` at most, by the owner's clock before it appends
    the copy (``Settler``): no copy waits longer than a rolled one. An owner has the contract of its
    own window in the checkpoint before it writes. So ``appended >= key - widest window - difference
    of the clocks``.
    """
    widest_ms = max(contract.roll_window_ms for _, contract in contracts.entries())
    return max(key_ms - widest_ms - CLOCKS_MS, 0)


def before(sifted: DataFrame, parts: Mapping[Place, LogPart]) -> dict[Place, LogPart]:
    """Return parts below ``parts`` that may hold a record which cancels one of ``sifted``.

    A copy may be cancelled by a record written before it, from its base on, which was H at the
    time. Records there are not pending: ``parts`` begin where the first one can be.
    """
    bases = sifted.where("key_ms is not null and record_id is not null").groupBy(*_SHARD)
    found = bases.agg(sf.min("base")).collect()
    starts = {(t, p): max(base, parts[t, p].log_start) for t, p, base in found}
    return {
        place: parts[place]._replace(start=start, stop=parts[place].start, from_ms=0, to_ms=0)
        for place, start in starts.items()
        if start < parts[place].start
    }


@dataclass(frozen=True, slots=True)
class _PendingSieve:
    """Function that sifts records of delay topics; it is sent to the executors."""

    parts: Mapping[Place, LogPart]
    facts: PendingColumns
    secrets: tuple[bytes, ...]

    def sift(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows of records that are pending by key, and of those that may cancel others."""
        readers: dict[Place, ShardReader] = {}
        for batch in batches:
            for topic, partition, rows in runs(batch):
                place, part = (topic, partition), self.parts[topic, partition]
                if place not in readers:
                    readers[place] = ShardReader(*place, part.contracts, self.secrets)
                entries = readers[place].read(rows_of(rows))
                kept = [row for e in entries if (row := self._row(part, e)) is not None]
                yield batch_of([(*place, *row) for row in kept], self.facts.whole)

    def _row(self, part: LogPart, entry: Entry) -> tuple[object, ...] | None:
        """Return columns from ``key_ms`` on; None: the record is not pending and no canceller."""
        offset, kind, key_ms, record_id, _, base = entry
        takes_place = record_id is not None and is_user_record(entry)
        canceller = offset if takes_place and offset < part.cursor.offset else None
        if (
            kind in (SCHEDULE, COPY)
            and part.from_ms <= key_ms < part.to_ms
            and not part.cursor.has_settled((key_ms, offset), _NEVER_MARKED)
        ):
            first = base if kind == COPY else offset + 1
            return key_ms, offset, record_id, canceller, first, *self.facts.of(entry)
        if canceller is None:
            return None
        return None, offset, record_id, canceller, None, *(None for _ in self.facts.schema)
