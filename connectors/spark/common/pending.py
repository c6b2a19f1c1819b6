"""Finds the pending records of delay topics: those that are not settled at a cursor.

The executors read the log as the service does (``sift``). They return records that are pending by
their key, which means that the cursor has not settled that key, and users' records with an id, as
these may cancel, replace or fire others of their id. ``uncancelled`` then removes the records that
were settled in this way: the last user's record of the same id below H is at or after the *base* of
the pending record, the first offset whose record may settle it (design rules 12 to 14).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from connectors.spark.common.decode import ShardReader, rows_of, runs
from connectors.spark.common.frames import batch_of
from connectors.spark.common.topics import Place, Span, read_topic
from delayservice.contract.contracts import Contracts
from delayservice.contract.entry import COPY, SCHEDULE, Entry
from delayservice.contract.times import DUE_STOP_MS
from delayservice.engine.cursor import Cursor
from delayservice.engine.marking import is_user_record
from delayservice.replicas.digest import HOUR_MS

# Allowance for differing clocks of nodes and brokers, in ms; in fact they differ by less than 500.
CLOCKS_MS: Final = HOUR_MS

_NEVER_MARKED: Final = -1
_SHARD: Final = ("topic", "partition")
# Columns of records that sift returns. canceller: the record's own offset if it is a user's record
# with an id below H, which settles earlier records of its id; else null. base: first offset whose
# record may settle this one; null if this one is not pending.
_SIFTED: Final = pa.schema(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        "key_ms": pa.int64(),
        "offset": pa.int64(),
        "record_id": pa.binary(),
        "canceller": pa.int64(),
        "base": pa.int64(),
    }
)


class LogPart(NamedTuple):
    """Part of a shard's log to read, and limits of the pending records to return from it.

    Attributes:
        contracts: contracts by which the shard's records are read.
        start, stop: source offsets to read, ``stop`` exclusive.
        cursor: cursor of the shard; records that it counts as settled are left out.
        from_ms, to_ms: key times (times of delivery) of pending records to return, epoch ms,
            ``to_ms`` exclusive.
        log_start: first offset that the log still has.
    """

    contracts: Contracts
    start: int
    stop: int
    cursor: Cursor
    from_ms: int = 0
    to_ms: int = DUE_STOP_MS + 1
    log_start: int = 0


class PendingColumns(NamedTuple):
    """Columns to return of each pending record, besides place, key and id.

    Attributes:
        schema: names and types of the columns.
        of: function from a decoded record to its values for ``schema``, run on the executors.
    """

    schema: pa.Schema
    of: Callable[[Entry], tuple[object, ...]]

    @property
    def whole(self) -> pa.Schema:
        return pa.schema([*_SIFTED, *self.schema])


def sift(
    spark: SparkSession,
    client: Mapping[str, str],
    parts: Mapping[Place, LogPart],
    facts: PendingColumns,
    secrets: Iterable[bytes],
    min_partitions: int,
) -> DataFrame:
    """Read parts of logs in at least ``min_partitions`` tasks, and return the records that are
    pending by their key, and those that may cancel others of their id.

    Returns:
        ``topic, partition, key_ms, offset, record_id, canceller, base`` and the columns of
        ``facts``. ``key_ms`` (epoch ms) is null for records that are not pending, and are returned
        only as they may cancel others.
    """
    spans = {place: Span(part.start, part.stop) for place, part in parts.items()}
    records = read_topic(spark, client, spans, min_partitions)
    sieve = _PendingSieve(dict(parts), facts, tuple(secrets))
    return records.mapInArrow(sieve.sift, from_arrow_schema(facts.whole))


def uncancelled(sifted: DataFrame) -> DataFrame:
    """Return the pending records of ``sift`` without those that a user's record of their id
    settles: ``topic, partition, key_ms, offset, record_id`` and the columns of ``PendingColumns``.
    """
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
    """Return a time, epoch ms, before which no record with a key of ``key_ms`` or later was
    appended.

    The key of a user's record is at most ``min(due, appended + roll window)`` (``RecordReader``).
    That of a requeued record is at most ``min(due, now + roll window)``, by the owner's clock just
    before it appends the record (``Settler``), as none waits longer than a rolled one. The contract
    with the owner's roll window is in the checkpoint before the owner writes. So ``appended >= key
    - widest roll window - difference of the clocks``.
    """
    widest_ms = max(contract.roll_window_ms for _, contract in contracts.entries())
    return max(key_ms - widest_ms - CLOCKS_MS, 0)


def before(sifted: DataFrame, parts: Mapping[Place, LogPart]) -> dict[Place, LogPart]:
    """Return the parts of logs below ``parts`` that may hold a record which cancels one of
    ``sifted``: a requeued record may be cancelled by a record written before it, from its base on.
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
    parts: Mapping[Place, LogPart]
    facts: PendingColumns
    secrets: tuple[bytes, ...]

    def sift(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        readers: dict[Place, ShardReader] = {}
        for batch in batches:
            for place, rows in runs(batch):
                part = self.parts[place]
                if place not in readers:
                    readers[place] = ShardReader(*place, part.contracts, self.secrets)
                read = readers[place].read(rows_of(rows))
                # The service has refused what no secret verifies, and stores it nowhere.
                entries = [e for e, is_verified in read if is_verified or not self.secrets]
                made = [self._row(part, e) for e in entries]
                kept = [row for row in made if row is not None]
                yield batch_of([(*place, *row) for row in kept], self.facts.whole)

    def _row(self, part: LogPart, entry: Entry) -> tuple[object, ...] | None:
        # None for a record that is neither pending by its key, nor may cancel others.
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
