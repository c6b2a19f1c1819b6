"""Records pending at a cut: those that nothing has settled, and when each is to be sent.

The executors read every record of the delay topics as the service does and hand on only what is
pending by its key, and the offsets of what bears an id; Spark then takes out what was cancelled or
replaced meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors.spark.common.cut import Cut, ShardCut
from connectors.spark.common.decode import ShardReader, rows_of, runs
from connectors.spark.common.topics import Place, read_topic
from delayservice.core.entry import COPY, INVALID, SCHEDULE, Entry

_NEVER_MARKED: Final = -1
_NO_MS: Final = -1

_ROWS: Final = (
    "topic string, partition int, id binary, canceller long, base long, send_ms long, "
    "target string, bytes long"
)
"""``send_ms`` -1: not pending, and here for its id only. ``canceller``: its own offset, when it is
a user's record below H, and so takes the place of earlier ones of its id; else -1. ``base``: the
first offset that may take its place."""

_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("id", pa.binary()),
        ("canceller", pa.int64()),
        ("base", pa.int64()),
        ("send_ms", pa.int64()),
        ("target", pa.string()),
        ("bytes", pa.int64()),
    ]
)


def pending(
    spark: SparkSession,
    client: Mapping[str, str],
    cut: Cut,
    secrets: Iterable[bytes],
    min_partitions: int,
) -> DataFrame:
    """Every pending record of the shards of a cut.

    Args:
        spark: the session.
        client: options of librdkafka.
        cut: cursors and ends; records that are settled between its two checkpoints count as
            settled.
        secrets: the cluster's; none: copies are believed.
        min_partitions: tasks at least.

    Returns:
        ``send_ms`` long, when it is due, or tried again; ``target`` string; ``bytes`` long, of its
        key and value.
    """
    places = [(shard.topic, shard.partition) for shard in cut.shards]
    records = read_topic(
        spark, client, cut.delay_topics, cut.starts(places), cut.ends(places), min_partitions
    )
    shards = {(shard.topic, shard.partition): shard for shard in cut.shards}
    rows = records.mapInArrow(Sieve(shards, tuple(secrets)).sift, _ROWS)
    cancellers = (
        rows.where("canceller >= 0")
        .groupBy("topic", "partition", "id")
        .agg(sf.max("canceller").alias("last"))
    )
    # The last one is enough: whether any lies at or after the base is whether the last one does.
    return (
        rows.where(f"send_ms <> {_NO_MS}")
        .join(cancellers, ["topic", "partition", "id"], "left")
        .where("last IS NULL OR last < base")
        .select("send_ms", "target", "bytes")
    )


@dataclass(frozen=True, slots=True)
class Sieve:
    """Sifts the records of delay topics; sent to the executors as it is."""

    shards: Mapping[Place, ShardCut]
    secrets: tuple[bytes, ...]

    def sift(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows of ``_ROWS`` for what is pending by its key, and for what bears an id."""
        readers: dict[Place, ShardReader] = {}
        for batch in batches:
            for topic, partition, part in runs(batch):
                shard = self.shards.get((topic, partition))
                if shard is None:
                    continue
                reader = readers.get((topic, partition))
                if reader is None:
                    reader = ShardReader(topic, partition, shard.contracts, self.secrets)
                    readers[topic, partition] = reader
                kept = [row for e in reader.read(rows_of(part)) if (row := _row(shard, e))]
                yield _batch(topic, partition, kept)


_Row = tuple[bytes | None, int, int, int, str | None, int]


def _row(shard: ShardCut, entry: Entry) -> _Row | None:
    """Columns from ``id`` on; None: the record has nothing to say here."""
    offset, kind, key_ms, record_id, payload, base = entry
    if kind == INVALID:
        return None
    cursor = shard.later
    is_pending = kind in (SCHEDULE, COPY) and not cursor.has_settled(
        (key_ms, offset), _NEVER_MARKED
    )
    takes_place = record_id is not None and kind != COPY and offset < cursor.offset
    canceller = offset if takes_place else -1
    if not is_pending:
        return (record_id, canceller, 0, _NO_MS, None, 0) if takes_place else None
    target, _, key, value, _, due_ms, _ = payload
    first = base if kind == COPY else offset + 1
    size = len(key or b"") + len(value or b"")
    # A parked copy has its next attempt in its key, a rolled one its roll.
    return (record_id, canceller, first, max(due_ms, key_ms), target, size)


def _batch(topic: str, partition: int, rows: list[_Row]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [()] * 6
    count = len(rows)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([topic] * count, pa.string()),
            pa.array([partition] * count, pa.int32()),
            *(
                pa.array(column, field.type)
                for column, field in zip(columns, list(_SCHEMA)[2:], strict=True)
            ),
        ],
        schema=_SCHEMA,
    )
