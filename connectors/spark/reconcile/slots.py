"""Slots and records of copies held against each other and against the log: data frames in and out.

Names of columns: a *shard* is ``topic, partition``, a *copy* ``node`` and that, a *slot* a shard's
``slot_start_ms``; a slot is ``SLOT_MS`` long.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as sf

from connectors.spark.reconcile.copies import slot_start
from connectors.spark.reconcile.digests import sum64
from connectors.spark.reconcile.logged import RECORDS
from connectors.spark.reconcile.plan import STEPS_MAX, Step
from delayservice.core.digest import HOUR_MS, SLOT_MS

FINDING: Final = (
    "kind string, node string, topic string, partition int, slot_start_ms bigint, "
    "slot_stop_ms bigint, offset bigint, key_ms bigint, detail string"
)
OF_RECORDS: Final = ("missing", "extra", "different")
KINDS: Final = (*OF_RECORDS, "damaged", "behind", "silent")

LOGGED: Final = f"{RECORDS}, slot_start_ms bigint"
"""What the log says is pending, with its slot."""
WRONG: Final = (
    "node string, topic string, partition int, slot_start_ms bigint, count bigint, log_count bigint"
)
"""A copy's slot that is not what the log says."""

SHARD: Final = ["topic", "partition"]
COPY: Final = ["node", *SHARD]
SLOT: Final = [*SHARD, "slot_start_ms"]
PLACE: Final = ["node", *SLOT]


def suspects(sums: DataFrame, copies: DataFrame, *, every: bool) -> DataFrame:
    """Slots to hold against the log.

    Args:
        sums: ``digests.SUMS``.
        copies: of each shard, the ``nodes`` that are compared.
        every: also those that are the same in all copies.

    Returns:
        A slot, and ``sums``: node, count and hash of each copy that has anything there.
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
    """Slots of copies that are not what the log says, less what is known to be unreadable.

    Args:
        suspected: as ``suspects`` gives them.
        logged: ``LOGGED``, of those slots at least.
        copies: as for ``suspects``.
        unreadable: ``replicas.UNREADABLE``.
        hashed: the column of ``logged`` that the sums are of.

    Returns:
        ``WRONG``.
    """
    right = logged.groupBy(*SLOT).agg(
        sf.count("*").alias("log_count"), sum64(sf.col(hashed)).alias("log_hash")
    )
    told = suspected.select(*SLOT, sf.explode("sums").alias("sum")).select(
        *SLOT, "sum.node", "sum.count", "sum.hash"
    )
    slots = suspected.select(*SLOT).union(right.select(*SLOT)).distinct()
    nodes = copies.select(*SHARD, sf.explode("nodes").alias("node"))
    held = (
        slots.join(sf.broadcast(nodes), SHARD)
        .join(told, PLACE, "left")
        .join(right, SLOT, "left")
        .na.fill(0, ["count", "hash", "log_count", "log_hash"])
        .where("count != log_count or hash != log_hash")
    )
    return outside(held, unreadable).select(*PLACE, "count", "log_count")


def outside(slots: DataFrame, ranges: DataFrame) -> DataFrame:
    """Slots of copies that no range of the copy reaches into; ``ranges``: ``UNREADABLE``."""
    bounds = ranges.select(
        *COPY, sf.col("slot_start_ms").alias("from_ms"), sf.col("slot_stop_ms").alias("to_ms")
    )
    reaches = [slots[name] == bounds[name] for name in COPY]
    reaches.append(slots["slot_start_ms"] < bounds["to_ms"])
    reaches.append(slots["slot_start_ms"] + SLOT_MS > bounds["from_ms"])
    return slots.join(sf.broadcast(bounds), reaches, "left_anti")


def told_in(asked: DataFrame, told: DataFrame, log_starts: DataFrame) -> DataFrame:
    """Return what copies hold in some slots, and whether the log can judge it.

    Args:
        asked: wrong slots of copies whose records are known.
        told: records of copies, those of ``asked`` or more.
        log_starts: of each shard ``log_start``.

    Returns:
        A copy's slot, ``key_ms``, ``offset``, ``payload_hash``, and ``is_judged``: false of what
        lies below the log's start. Retention has deleted it there, and the copy may be the last.
    """
    return (
        told.withColumn("slot_start_ms", slot_start(sf.col("key_ms")))
        .join(asked, PLACE, "left_semi")
        .join(sf.broadcast(log_starts), SHARD)
        .withColumn("is_judged", sf.col("offset") >= sf.col("log_start"))
        .select(*PLACE, "key_ms", "offset", "payload_hash", "is_judged")
    )


def record_findings(asked: DataFrame, logged: DataFrame, theirs: DataFrame) -> DataFrame:
    """Records that are not in a copy as the log has them.

    Args:
        asked: wrong slots of copies whose records are known.
        logged: as for ``wrong_slots``.
        theirs: as ``told_in`` gives them.
    """
    ours = asked.select(*PLACE).join(logged, SLOT)
    columns = [*PLACE, "key_ms", "offset"]
    kind = (
        sf.when(sf.col("payload_hash").isNull(), "missing")
        .when(sf.col("log_payload").isNull(), "extra")
        .when(sf.col("payload_hash") != sf.col("log_payload"), "different")
    )
    detail = (
        sf.when(sf.col("kind") == "missing", "the log has it pending, the copy has not")
        .when(
            sf.col("kind") == "extra",
            "the copy has it pending; by the log it is cancelled, replaced or was never written",
        )
        .otherwise("the copy has it with other content than the log")
    )
    return (
        ours.select(*columns, sf.col("payload_hash").alias("log_payload"))
        .join(theirs.where("is_judged").select(*columns, "payload_hash"), columns, "full")
        .withColumn("kind", kind)
        .where("kind is not null")
        .withColumn("detail", detail)
        .transform(_as_findings)
    )


def slot_findings(
    wrong: DataFrame, explained: DataFrame, theirs: DataFrame, unanswered: DataFrame
) -> DataFrame:
    """Wrong slots of which no single record is known to be wrong, and that the log can judge.

    Args:
        wrong: as ``wrong_slots`` gives them.
        explained: findings of records.
        theirs: as ``told_in`` gives them: a slot with records below the log's start must have
            another sum than the log has.
        unanswered: ``replicas.UNREADABLE``: ranges whose records are not known, and why.
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
        .join(theirs.where("not is_judged"), PLACE, "left_anti")
        .join(unknown, PLACE, "left")
        .withColumn("kind", kind)
        .withColumn("detail", sf.concat(counts, why))
        .withColumn("offset", no_number())
        .withColumn("key_ms", no_number())
        .transform(_as_findings)
    )


def damage_findings(unreadable: DataFrame) -> DataFrame:
    """Damage as findings."""
    return (
        unreadable.withColumn("kind", sf.lit("damaged"))
        .withColumn("offset", no_number())
        .withColumn("key_ms", no_number())
        .withColumnRenamed("why", "detail")
        .select(*_FINDING_COLUMNS)
    )


def no_number() -> Column:
    """A long that says nothing."""
    return sf.lit(None).cast("bigint")


_FINDING_COLUMNS: Final = [column.split()[0] for column in FINDING.split(",")]


def _as_findings(rows: DataFrame) -> DataFrame:
    stop = sf.col("slot_start_ms") + SLOT_MS
    return rows.withColumn("slot_stop_ms", stop).select(*_FINDING_COLUMNS)


# --- ranges --------------------------------------------------------------------------------------


def ranges_of(wrong: DataFrame) -> DataFrame:
    """Stretches of a copy with wrong slots, from the first to the last one of an hour.

    Returns:
        A copy, ``start_ms`` and ``stop_ms``, in this order.
    """
    slots = wrong.withColumn("slot_stop_ms", sf.col("slot_start_ms") + SLOT_MS)
    return _islands(slots, HOUR_MS, [])


def plan_steps(
    found: DataFrame, logged: DataFrame, damaged: DataFrame, shards: DataFrame
) -> list[Step]:
    """Return what is to be read again: each copy's adjoining slots with findings as one range,
    which is never longer than an hour, for a node reads it in one go.

    A whole slot that has more in it than the log, or other records, is left alone where the log
    does not go back to its first record: what is right there is not known.

    Args:
        found: findings.
        logged: as for ``wrong_slots``: tells which offsets belong into a slot.
        damaged: ``replicas.UNREADABLE``.
        shards: of each shard ``below``, the H of the comparison, and ``log_start``.

    Returns:
        One more than ``STEPS_MAX`` if that are not all.
    """
    offsets = logged.groupBy(*SLOT).agg(
        sf.min("offset").alias("low"), (sf.max("offset") + 1).alias("high")
    )
    counts = [sf.count_if(sf.col("kind") == kind).alias(kind) for kind in OF_RECORDS]
    slots = (
        found.where(sf.col("kind").isin(*OF_RECORDS))
        .join(sf.broadcast(shards), SHARD)
        .where("offset is not null or kind = 'missing' or log_start = 0")
        .groupBy(*PLACE, "slot_stop_ms", "below")
        .agg(*counts)
        .join(offsets, SLOT, "left")
        .withColumn("first_offset", sf.coalesce("low", "below"))
        .withColumn("stop_offset", sf.coalesce("high", "below"))
        .withColumn("damaged", sf.lit(0).cast("bigint"))
    )
    broken = _by_hours(damaged.where("stop_offset is not null")).withColumn(
        "damaged", sf.lit(1).cast("bigint")
    )
    for kind in OF_RECORDS:
        broken = broken.withColumn(kind, sf.lit(0).cast("bigint"))
    columns = [*PLACE, "slot_stop_ms", "first_offset", "stop_offset", *OF_RECORDS, "damaged"]
    joined = slots.select(*columns).union(broken.select(*columns))
    summed = [
        sf.min("first_offset").alias("first_offset"),
        sf.max("stop_offset").alias("stop_offset"),
        *(sf.sum(kind).alias(kind) for kind in (*OF_RECORDS, "damaged")),
    ]
    return [_step(row) for row in _islands(joined, 0, summed).limit(STEPS_MAX + 1).collect()]


def _by_hours(ranges: DataFrame) -> DataFrame:
    """Ranges cut at full hours; ``STEPS_MAX`` pieces of each, for a plan has no more."""
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
    """Slots of a copy and an hour that are no more than ``gap_ms`` apart, as one row."""
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
        .orderBy(*COPY, "start_ms")
    )


def _step(row: Row) -> Step:
    found = row.asDict()
    counts = [(kind, found.pop(kind)) for kind in (*OF_RECORDS, "damaged")]
    why = ", ".join(f"{count} {kind}" for kind, count in counts if count)
    return Step(why=why, **found)
