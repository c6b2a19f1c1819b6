"""Pending records by the delay topics: a copy is right or wrong by this.

The executors read the log as the service does. A record counts when its key is in the range that is
asked for, and no user record of its id follows at or after its base and below H (design rules 12 to
14); whether any does is whether the last one does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors.spark.common.decode import ShardReader, rows_of, runs
from connectors.spark.common.topics import Place, read_topic
from connectors.spark.reconcile.stored import signed
from delayservice.core.codec import encode_payload
from delayservice.core.contract import Contracts
from delayservice.core.digest import frame_hash
from delayservice.core.entry import COPY, SCHEDULE, Entry
from delayservice.core.storing import is_user_record

RECORDS: Final = (
    "topic string, partition int, key_ms bigint, offset bigint, payload_hash bigint, "
    "frame_hash bigint"
)

_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key_ms", pa.int64()),
        ("offset", pa.int64()),
        ("payload_hash", pa.int64()),
        ("frame_hash", pa.int64()),
        ("record_id", pa.binary()),
        ("canceller", pa.int64()),
        ("base", pa.int64()),
    ]
)
_DDL: Final = f"{RECORDS}, record_id binary, canceller bigint, base bigint"
"""``key_ms`` null: the record is here for its id only. ``canceller``: its offset, if it is a user's
with an id, and so takes the place of earlier ones."""


class LogPart(NamedTuple):
    """What is asked of one shard's log: records below ``offset`` with keys in
    ``[from_ms, to_ms)``; the log begins at ``start``.
    """

    contracts: Contracts
    start: int
    offset: int
    from_ms: int
    to_ms: int


def pending_records(
    spark: SparkSession,
    client: Mapping[str, str],
    parts: Mapping[Place, LogPart],
    secrets: Sequence[bytes],
    min_partitions: int,
) -> DataFrame:
    """Every pending record of the parts, as ``RECORDS``.

    Args:
        spark: the session.
        client: options of librdkafka.
        parts: what is asked, by shard.
        secrets: the cluster's; none: copies are believed.
        min_partitions: tasks at least.
    """
    records = read_topic(
        spark,
        client,
        {topic for topic, _ in parts},
        {place: part.start for place, part in parts.items()},
        {place: part.offset for place, part in parts.items()},
        min_partitions,
    )
    rows = records.mapInArrow(_Sieve(dict(parts), tuple(secrets)).sift, _DDL)
    shard_id = ["topic", "partition", "record_id"]
    cancellers = (
        rows.where("canceller is not null")
        .groupBy(*shard_id)
        .agg(sf.max("canceller").alias("last"))
    )
    return (
        rows.where("key_ms is not null")
        .join(cancellers, shard_id, "left")
        .where("last is null or last < base")
        .select("topic", "partition", "key_ms", "offset", "payload_hash", "frame_hash")
    )


@dataclass(frozen=True, slots=True)
class _Sieve:
    """Sifts records of delay topics; sent to the executors as it is."""

    parts: Mapping[Place, LogPart]
    secrets: tuple[bytes, ...]

    def sift(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows of ``_DDL`` for records of the parts, and for what bears an id."""
        readers: dict[Place, ShardReader] = {}
        for batch in batches:
            for topic, partition, rows in runs(batch):
                place, part = (topic, partition), self.parts[topic, partition]
                if place not in readers:
                    readers[place] = ShardReader(*place, part.contracts, self.secrets)
                entries = readers[place].read(rows_of(rows))
                yield _batch(place, [row for e in entries if (row := _row(part, e)) is not None])


_Row = tuple[int | None, int, int, int, bytes | None, int | None, int]


def _row(part: LogPart, entry: Entry) -> _Row | None:
    """Columns from ``key_ms`` on; None: the record says nothing here."""
    offset, kind, key_ms, record_id, payload, base = entry
    canceller = offset if record_id is not None and is_user_record(entry) else None
    if kind in (SCHEDULE, COPY) and part.from_ms <= key_ms < part.to_ms:
        data = encode_payload(payload)
        hashed = signed(frame_hash(key_ms, offset, None, data))
        named = hashed if record_id is None else signed(frame_hash(key_ms, offset, record_id, data))
        first = base if kind == COPY else offset + 1
        return key_ms, offset, hashed, named, record_id, canceller, first
    return None if canceller is None else (None, offset, 0, 0, record_id, canceller, 0)


def _batch(place: Place, rows: Sequence[_Row]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [()] * 7
    arrays = [
        pa.array([place[0]] * len(rows), pa.string()),
        pa.array([place[1]] * len(rows), pa.int32()),
    ]
    arrays += [
        pa.array(column, field.type)
        for column, field in zip(columns, list(_SCHEMA)[2:], strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
