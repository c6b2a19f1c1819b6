"""Compares copies with each other and with the log: takes data frames, returns findings.

Works on the session of the given data frames, Spark Connect included. ``docs/reconcile.md``
describes the findings. *By the log*: according to the delay topic's records. A *shard* is
``topic, partition``, a *copy* ``node`` and a shard, an *hour* ``hour_ms``, the start of an hour of
due time, epoch ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors.spark.common.frames import batch_of
from delayservice.replicas.digest import HOUR_MS

FINDINGS_VERSION: Final = 1
"""Version of the format ``FINDING``."""

SHARD_TYPES: Final = {"topic": pa.string(), "partition": pa.int32()}
COPY_TYPES: Final = {"node": pa.string(), **SHARD_TYPES}
SHARD: Final = [*SHARD_TYPES]
COPY: Final = [*COPY_TYPES]
HOUR: Final = [*SHARD, "hour_ms"]
PLACE: Final = [*COPY, "hour_ms"]
_RECORD: Final = [*PLACE, "key_ms", "offset"]


def longs(*names: str) -> dict[str, pa.DataType]:
    return dict.fromkeys(names, pa.int64())


FINDING: Final = pa.schema(
    {
        "kind": pa.string(),
        **COPY_TYPES,
        **longs("start_ms", "stop_ms", "offset", "key_ms"),
        "detail": pa.string(),
    }
)
"""Columns of a finding. Times are epoch ms; ``detail`` is a text for users; columns that do not
apply are null."""
SUMS: Final = pa.schema({**COPY_TYPES, **longs("hour_ms", "count", "hash")})
"""Columns of one hour of one copy: number of pending records, and sum of their hashes modulo 2^64
as a signed number."""
TOLD: Final = pa.schema({**COPY_TYPES, **longs("hour_ms", "stop_ms"), "why": pa.string()})
"""Columns of an hour whose records a node was asked for. It has told those with key times below
``stop_ms``, epoch ms; ``why``: reason if that is not the whole hour."""
COPIES: Final = pa.schema({**COPY_TYPES, **longs("below", "k_ms", "k_offset", "from_ms")})
"""Columns of a copy that is compared: its cursor (H, and K with its offset), and the lowest key
time that is compared, epoch ms."""
LIMITS: Final = pa.schema({**SHARD_TYPES, **longs("log_start", "later_ms", "from_ms")})
"""Columns of a shard after the comparison: first offset of its log, key time of K, and ``from_ms``
of its copies."""

OF_RECORDS: Final = ("missing", "extra", "different")
"""Kinds of findings about records: a copy lacks one, has one too many, or has other content."""
KINDS: Final = (*OF_RECORDS, "damaged", "behind", "silent")


def frame_of(spark: SparkSession, rows: Iterable[Sequence[Any]], schema: pa.Schema) -> DataFrame:
    # From Arrow, as a list of rows would make Python workers of executors decode it.
    return spark.createDataFrame(pa.Table.from_batches([batch_of(rows, schema)]))


def compare(held: DataFrame, logged: DataFrame, copies: DataFrame) -> DataFrame:
    """Return a finding for each pending record of the log that a copy lacks (``missing``) or has
    with another content (``different``), and for each that only a copy has (``extra``).

    Args:
        held: records of all copies that are pending at the shard's cursor: offsets below H with
            keys above K, without records that an offset below H cancels. Columns ``node, topic,
            partition, key_ms, offset, payload_hash``.
        logged: records that are pending by the log at the same cursor; the same columns without
            ``node``.
        copies: copies to compare, each once: ``node, topic, partition, log_start``. Records of the
            copy with offsets below ``log_start``, the first one of the shard's log, can't be
            judged, and are ignored. With ``hour_ms`` and ``stop_ms``, only the records of those
            hours are compared, up to key time ``stop_ms``, exclusive.

    Returns:
        Columns of ``FINDING``.
    """
    scope = [name for name in PLACE if name in copies.columns]
    is_in_scope = "key_ms < stop_ms" if "stop_ms" in copies.columns else "true"
    ours = logged.transform(with_hour).join(copies, [name for name in scope if name != "node"])
    theirs = held.transform(with_hour).join(copies, scope).where("offset >= log_start")
    ours = ours.where(is_in_scope).select(*_RECORD, sf.col("payload_hash").alias("log_hash"))
    theirs = theirs.where(is_in_scope).select(*_RECORD, "payload_hash")
    extra = "the copy has it pending; by the log it is cancelled, replaced or was never written"
    said = (
        sf.when(
            sf.col("payload_hash").isNull(),
            _said("missing", "the log has it pending, the copy has not"),
        )
        .when(sf.col("log_hash").isNull(), _said("extra", extra))
        .when(
            sf.col("payload_hash") != sf.col("log_hash"),
            _said("different", "the copy has it with other content than the log"),
        )
    )
    found = ours.join(theirs, _RECORD, "full").withColumn("said", said).where("said is not null")
    return found.select("*", "said.*").transform(as_findings)


def _said(kind: str, detail: str) -> Column:
    return sf.struct(sf.lit(kind).alias("kind"), sf.lit(detail).alias("detail"))


def with_hour(records: DataFrame) -> DataFrame:
    return records.withColumn("hour_ms", sf.col("key_ms") - sf.col("key_ms") % HOUR_MS)


def as_findings(rows: DataFrame) -> DataFrame:
    # Columns that the rows lack are null; without its own bounds, a row has those of its hour.
    unknown = sf.lit(None).cast("bigint")
    told = {"offset": unknown, "key_ms": unknown}
    if "hour_ms" in rows.columns:
        told |= {"start_ms": sf.col("hour_ms"), "stop_ms": sf.col("hour_ms") + HOUR_MS}
    told |= {name: sf.col(name) for name in rows.columns}
    return rows.select(*(told[name].alias(name) for name in FINDING.names))


# --- hours -------------------------------------------------------------------------------------


def suspects(sums: DataFrame, copies: DataFrame, *, every: bool) -> DataFrame:
    """Return the hours (``HOUR``) that differ between ``copies``, or ``every`` hour of them."""
    said = sf.struct("count", "hash")
    hours = _in_all(sums.select(*HOUR).distinct(), sums, copies).groupBy(*HOUR)
    found = hours.agg(sf.min(said).alias("least"), sf.max(said).alias("most"))
    return found.where("true" if every else "least != most").select(*HOUR)


def hours_to_ask(
    suspected: DataFrame, sums: DataFrame, logged: DataFrame, copies: DataFrame, hashed: str
) -> DataFrame:
    """Return the hours of copies whose records are to be compared with those of the log.

    Args:
        logged: all records of ``suspected`` hours that are pending by the log, with the hash that
            ``sums`` adds up in the column ``hashed``.

    Returns:
        ``PLACE, count, log_count, is_wrong, has_ids``: the hours that differ from the log in count
        or hash (``is_wrong``), and those with records that bear an id.
    """
    right = logged.groupBy(*HOUR).agg(
        sf.count("*").alias("log_count"),
        sum64(sf.col(hashed)).alias("log_hash"),
        sf.max(sf.col("record_id").isNotNull()).alias("has_ids"),
    )
    hours = suspected.select(*HOUR).union(right.select(*HOUR)).distinct()
    return (
        _in_all(hours, sums, copies)
        .join(right, HOUR, "left")
        .na.fill(0, ["log_count", "log_hash"])
        .withColumn("is_wrong", sf.expr("count != log_count or hash != log_hash"))
        .select(*PLACE, "count", "log_count", "is_wrong", "has_ids")
        .where("is_wrong or has_ids")
    )


def _in_all(hours: DataFrame, sums: DataFrame, copies: DataFrame) -> DataFrame:
    whole = hours.join(sf.broadcast(copies.select(*COPY)), SHARD)
    return whole.join(sums, PLACE, "left").na.fill(0, ["count", "hash"])


def outside(hours: DataFrame, ranges: DataFrame) -> DataFrame:
    """Return the hours of copies that no range of the same copy (``FINDING``) overlaps."""
    reaches = [hours[name] == ranges[name] for name in COPY]
    reaches.append(hours["hour_ms"] < ranges["stop_ms"])
    reaches.append(hours["hour_ms"] + HOUR_MS > ranges["start_ms"])
    return hours.join(sf.broadcast(ranges), reaches, "left_anti")


def hour_findings(
    wrong: DataFrame, explained: DataFrame, unjudged: DataFrame, told: DataFrame
) -> DataFrame:
    """Return a finding for each wrong hour of a copy that no finding about a record explains.

    Hours with records below the start of the log (``unjudged``) are left out, as they must differ.
    ``told``: columns ``TOLD``.
    """
    kind = (
        sf.when(sf.col("count") < sf.col("log_count"), "missing")
        .when(sf.col("count") > sf.col("log_count"), "extra")
        .otherwise("different")
    )
    counts = sf.format_string(
        "the copy counts %d records, the log %d; ", sf.col("count"), sf.col("log_count")
    )
    why = (
        sf.when(sf.col("stop_ms").isNull(), "its node was not asked which they are")
        .when(sf.col("why").isNotNull(), sf.concat(sf.lit("which they are is not known: "), "why"))
        .otherwise("its records are as in the log, its digest is not: read its disk again")
    )
    known = explained.withColumnRenamed("start_ms", "hour_ms").select(*PLACE)
    return (
        wrong.join(known.union(unjudged.select(*PLACE)), PLACE, "left_anti")
        .join(told, PLACE, "left")
        .withColumns({"kind": kind, "detail": sf.concat(counts, why)})
        .drop("stop_ms")
        .transform(as_findings)
    )


def sum64(numbers: Column) -> Column:
    """Return the sum of signed numbers modulo 2^64. Halves are added apart, as Spark's sum must not
    overflow.
    """
    low = sf.sum(numbers.bitwiseAND(sf.lit(0xFFFF_FFFF)))
    high = sf.sum(sf.shiftrightunsigned(numbers, 32)) + sf.shiftright(low, 32)
    return sf.shiftleft(high, 32).bitwiseOR(low.bitwiseAND(sf.lit(0xFFFF_FFFF)))
