"""Compares slots (minutes of due times) of copies with each other and with the log.

Columns: a *shard* is ``topic, partition``, a *copy* ``node`` and a shard, a *slot* a shard and
``slot_start_ms`` (epoch ms). *By the log*: according to the records of the delay topic.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as sf

from connectors.spark.reconcile.compare import COPY, OF_RECORDS, PLACE, SHARD, SLOT, as_findings
from connectors.spark.reconcile.digest_rows import sum64
from connectors.spark.reconcile.repair_plan import STEPS_MAX, RepairStep
from delayservice.replicas.digest import HOUR_MS, SLOT_MS

KINDS: Final = (*OF_RECORDS, "damaged", "behind", "silent")

WRONG: Final = (
    "node string, topic string, partition int, slot_start_ms bigint, count bigint, log_count bigint"
)
"""Columns of a slot of a copy that differs from the log: ``count`` records in the copy,
``log_count`` pending by the log."""


def suspects(sums: DataFrame, copies: DataFrame, *, every: bool) -> DataFrame:
    """Return the slots that differ between copies, or ``every`` slot, with ``sums``: an array of
    node, count and hash of each copy. ``copies``: for each shard, the ``nodes`` that are compared.
    """
    said = sf.struct("count", "hash")
    slots = (
        sums.groupBy(*SLOT)
        .agg(
            sf.min(said).alias("least"),
            sf.max(said).alias("most"),
            sf.collect_list(sf.struct("node", "count", "hash")).alias("sums"),
        )
        .join(sf.broadcast(copies), SHARD)
    )
    if not every:
        slots = slots.where("size(sums) < size(nodes) or least != most")
    return slots.select(*SLOT, "sums")


def wrong_slots(
    suspected: DataFrame, logged: DataFrame, copies: DataFrame, unreadable: DataFrame, hashed: str
) -> DataFrame:
    """Return the readable slots of copies that differ from the log in count or hash, columns
    ``WRONG``. ``logged`` has the hash to sum up in the column ``hashed``, and all records of
    ``suspected`` slots.
    """
    right = logged.groupBy(*SLOT).agg(
        sf.count("*").alias("log_count"), sum64(sf.col(hashed)).alias("log_hash")
    )
    told = suspected.select(*SLOT, sf.inline("sums"))
    slots = suspected.select(*SLOT).union(right.select(*SLOT)).distinct()
    held = (
        slots.join(sf.broadcast(by_node(copies)), SHARD)
        .join(told, PLACE, "left")
        .join(right, SLOT, "left")
        .na.fill(0, ["count", "hash", "log_count", "log_hash"])
        .where("count != log_count or hash != log_hash")
    )
    return outside(held, unreadable).select(*PLACE, "count", "log_count")


def by_node(copies: DataFrame) -> DataFrame:
    return copies.select(*SHARD, sf.explode("nodes").alias("node"))


def outside(slots: DataFrame, ranges: DataFrame) -> DataFrame:
    """Return the slots of copies that no range of the same copy overlaps."""
    bounds = ranges.select(
        *COPY, sf.col("slot_start_ms").alias("from_ms"), sf.col("slot_stop_ms").alias("to_ms")
    )
    reaches = [slots[name] == bounds[name] for name in COPY]
    reaches.append(slots["slot_start_ms"] < bounds["to_ms"])
    reaches.append(slots["slot_start_ms"] + SLOT_MS > bounds["from_ms"])
    return slots.join(sf.broadcast(bounds), reaches, "left_anti")


def slot_findings(
    wrong: DataFrame, explained: DataFrame, unjudged: DataFrame, unanswered: DataFrame
) -> DataFrame:
    """Return a finding for each wrong slot of a copy that no finding about a record explains.

    Slots with records below the start of the log (``unjudged``) are left out, as they must differ.
    """
    unknown = outside(wrong, unanswered).select(*PLACE, sf.expr("true").alias("is_known"))
    kind = (
        sf.when(sf.col("count") < sf.col("log_count"), "missing")
        .when(sf.col("count") > sf.col("log_count"), "extra")
        .otherwise("different")
    )
    counts = sf.format_string(
        "the copy counts %d records, the log %d; ", sf.col("count"), sf.col("log_count")
    )
    why = sf.when(
        sf.col("is_known"), "its records are as in the log, its digest is not: read its disk again"
    ).otherwise("which they are is not known: the node gave no details")
    return (
        wrong.join(explained, PLACE, "left_anti")
        .join(unjudged, PLACE, "left_anti")
        .join(unknown, PLACE, "left")
        .withColumns({"kind": kind, "detail": sf.concat(counts, why)})
        .transform(as_findings)
    )


def damage_findings(unreadable: DataFrame) -> DataFrame:
    found = unreadable.withColumn("kind", sf.lit("damaged")).withColumnRenamed("why", "detail")
    return as_findings(found)


def ranges_of(slots: DataFrame) -> DataFrame:
    """Return the ranges of due times whose records nodes must send, sorted, wrong slots first: for
    each hour of a copy, from the first to the last of ``slots``; ``stop_ms`` is exclusive.
    """
    ends = slots.withColumn("slot_stop_ms", sf.col("slot_start_ms") + SLOT_MS)
    islands = _islands(ends, HOUR_MS, [sf.max("is_wrong").alias("is_wrong")])
    return islands.orderBy(sf.desc("is_wrong"), *COPY, "start_ms").drop("is_wrong")


def plan_steps(
    found: DataFrame, logged: DataFrame, damaged: DataFrame, shards: DataFrame
) -> list[RepairStep]:
    """Return the ranges of copies that nodes must read again from the log, as repair steps.
    Adjoining slots of a copy become one range of at most an hour, as a node reads that in one go.

    A slot with more or other records than the log is not repaired as a whole unless the log still
    has its first record: otherwise the right content is unknown.

    Args:
        found: findings of the comparison.
        logged: records that are pending by the log: their offsets limit what is read again.
        damaged: unreadable ranges of copies, columns ``details.UNREADABLE``.
        shards: for each shard ``topic_id``; ``below``, the H of the comparison; and ``log_start``.

    Returns:
        At most ``STEPS_MAX`` + 1 steps; the last one shows that some are missing.
    """
    offsets = logged.groupBy(*SLOT).agg(
        sf.min("offset").alias("low"), (sf.max("offset") + 1).alias("high")
    )
    kinds = (*OF_RECORDS, "damaged")
    slots = (
        found.where(sf.col("kind").isin(*OF_RECORDS))
        .join(sf.broadcast(shards), SHARD)
        .where("offset is not null or kind = 'missing' or log_start = 0")
        .join(offsets, SLOT, "left")
        .withColumn("first_offset", sf.coalesce("low", "below"))
        .withColumn("stop_offset", sf.coalesce("high", "below"))
    )
    broken = _by_hours(damaged.where("stop_offset is not null"))
    columns = [*PLACE, "slot_stop_ms", "first_offset", "stop_offset", "kind"]
    joined = slots.select(*columns).union(
        broken.withColumn("kind", sf.lit("damaged")).select(*columns)
    )
    summed = [
        sf.min("first_offset").alias("first_offset"),
        sf.max("stop_offset").alias("stop_offset"),
        *(sf.count_if(sf.col("kind") == kind).alias(kind) for kind in kinds),
    ]
    ids = sf.broadcast(shards.select(*SHARD, "topic_id"))
    steps = _islands(joined, 0, summed).join(ids, SHARD).orderBy(*COPY, "start_ms")
    return [_step(row) for row in steps.limit(STEPS_MAX + 1).collect()]


def _by_hours(ranges: DataFrame) -> DataFrame:
    # About STEPS_MAX pieces of each range at most, as a plan has no more steps.
    start, stop = sf.col("slot_start_ms"), sf.col("slot_stop_ms")
    last = sf.least(stop - 1, start + STEPS_MAX * HOUR_MS)
    hours = sf.sequence(_hour(start), _hour(last), sf.lit(HOUR_MS).cast("bigint"))
    return (
        ranges.withColumn("hour_ms", sf.explode(hours))
        .withColumn("slot_start_ms", sf.greatest(start, "hour_ms"))
        .withColumn("slot_stop_ms", sf.least(stop, sf.col("hour_ms") + HOUR_MS))
        .drop("hour_ms")
    )


def _hour(time_ms: Column) -> Column:
    return time_ms - time_ms % HOUR_MS


def _islands(slots: DataFrame, gap_ms: int, summed: list[Column]) -> DataFrame:
    # Slots of a copy within an hour that are at most gap_ms apart become one range.
    hour = _hour(sf.col("slot_start_ms")).alias("hour_ms")
    before = Window.partitionBy(*COPY, hour).orderBy("slot_start_ms", "slot_stop_ms")
    reach = sf.max("slot_stop_ms").over(before.rowsBetween(Window.unboundedPreceding, -1))
    begins = sf.when(sf.col("slot_start_ms") <= reach + gap_ms, 0).otherwise(1)
    return (
        slots.withColumn("begins", begins)
        .withColumn("island", sf.sum("begins").over(before))
        .groupBy(*COPY, hour, "island")
        .agg(
            sf.min("slot_start_ms").alias("start_ms"),
            sf.max("slot_stop_ms").alias("stop_ms"),
            *summed,
        )
        .drop("hour_ms", "island")
    )


def _step(row: Row) -> RepairStep:
    found = row.asDict()
    counts = [(kind, found.pop(kind)) for kind in (*OF_RECORDS, "damaged")]
    why = ", ".join(f"{count} {kind}" for kind, count in counts if count)
    return RepairStep(why=why, **found)
