"""Compares copies with each other and with the log: takes data frames, returns findings.

Works on the session of the given data frames, Spark Connect included. ``docs/reconcile.md``
describes the findings. *By the log*: according to the delay topic's records. A *shard* is
``topic, partition``, a *copy* ``node`` and a shard, an *hour* ``hour_ms``, the start of an hour of
due time, epoch ms.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from connectors.spark.common.frames import arrow_schema
from connectors.spark.reconcile.digest_rows import sum64
from connectors.spark.reconcile.repair_plan import RepairStep
from delayservice.replicas.digest import HOUR_MS

FINDINGS_VERSION: Final = 1
"""Version of the format ``FINDING``."""

FINDING: Final = (
    "kind string, node string, topic string, partition int, start_ms bigint, stop_ms bigint, "
    "offset bigint, key_ms bigint, detail string"
)
"""Columns of a finding. Times are epoch ms; ``detail`` is a text for users; columns that do not
apply are null."""
OF_RECORDS: Final = ("missing", "extra", "different")
"""Kinds of findings about records: a copy lacks one, has one too many, or has other content."""

HELD: Final = (
    "node string, topic string, partition int, key_ms bigint, offset bigint, payload_hash bigint"
)
"""Columns of a pending record in a copy; ``payload_hash`` as in ``stored.DDL``."""
LOGGED: Final = "topic string, partition int, key_ms bigint, offset bigint, payload_hash bigint"
COPIES: Final = "node string, topic string, partition int, log_start bigint"
"""Columns of a copy to compare. ``log_start``: first offset of the shard's log; records of the copy
with lower offsets can't be judged, and are ignored."""
TOLD: Final = "node string, topic string, partition int, hour_ms bigint, stop_ms bigint, why string"
"""Columns of an hour whose records a node was asked for. It has told those with key times below
``stop_ms``, epoch ms; ``why``: reason if that is not the whole hour."""
UNREADABLE: Final = (
    "node string, topic string, partition int, start_ms bigint, stop_ms bigint, why string"
)
"""Columns of a range of key times, epoch ms, of a copy that could not be read; ``why``: reason for
users."""
WRONG: Final = (
    "node string, topic string, partition int, hour_ms bigint, count bigint, log_count bigint"
)
"""Columns of an hour of a copy that differs from the log: ``count`` records in the copy,
``log_count`` pending by the log."""

SHARD: Final = ["topic", "partition"]
COPY: Final = ["node", *SHARD]
HOUR: Final = [*SHARD, "hour_ms"]
PLACE: Final = ["node", *HOUR]
KINDS: Final = (*OF_RECORDS, "damaged", "behind", "silent")
_RECORD: Final = [*PLACE, "key_ms", "offset"]

_DETAIL: Final = {
    "missing": "the log has it pending, the copy has not",
    "extra": "the copy has it pending; by the log it is cancelled, replaced or was never written",
    "different": "the copy has it with other content than the log",
}


def compare(held: DataFrame, logged: DataFrame, copies: DataFrame) -> DataFrame:
    """Return a finding for each pending record of the log that a copy lacks (``missing``) or has
    with another content (``different``), and for each that only a copy has (``extra``).

    Args:
        held: records of all copies, columns ``HELD``, pending at the shard's cursor: offsets below
            H with keys above K, without records that an offset below H cancels.
        logged: records that are pending by the log at the same cursor, columns ``LOGGED``.
        copies: copies to compare, columns ``COPIES``, each once. With ``hour_ms`` and ``stop_ms``,
            only the records of those hours are compared, up to key time ``stop_ms``, exclusive.

    Returns:
        Columns of ``FINDING``.
    """
    scope = [name for name in PLACE if name in copies.columns]
    is_in_scope = "key_ms < stop_ms" if "stop_ms" in copies.columns else "true"
    ours = logged.transform(with_hour).join(copies, [name for name in scope if name != "node"])
    theirs = held.transform(with_hour).join(copies, scope).where("offset >= log_start")
    kind = (
        sf.when(sf.col("payload_hash").isNull(), "missing")
        .when(sf.col("log_payload").isNull(), "extra")
        .when(sf.col("payload_hash") != sf.col("log_payload"), "different")
    )
    return (
        ours.where(is_in_scope)
        .select(*_RECORD, sf.col("payload_hash").alias("log_payload"))
        .join(theirs.where(is_in_scope).select(*_RECORD, "payload_hash"), _RECORD, "full")
        .withColumn("kind", kind)
        .where("kind is not null")
        .withColumn("detail", _by_kind(_DETAIL))
        .transform(as_findings)
    )


def with_hour(records: DataFrame) -> DataFrame:
    return records.withColumn("hour_ms", sf.col("key_ms") - sf.col("key_ms") % HOUR_MS)


def as_findings(rows: DataFrame) -> DataFrame:
    # Columns that the rows lack are null; without its own bounds, a row has those of its hour.
    unknown = sf.lit(None).cast("bigint")
    told = {"offset": unknown, "key_ms": unknown}
    if "hour_ms" in rows.columns:
        told |= {"start_ms": sf.col("hour_ms"), "stop_ms": sf.col("hour_ms") + HOUR_MS}
    told |= {name: sf.col(name) for name in rows.columns}
    return rows.select(*(told[name].alias(name) for name in arrow_schema(FINDING).names))


def _by_kind(texts: dict[str, str]) -> Column:
    pairs = [sf.lit(text) for pair in texts.items() for text in pair]
    return sf.element_at(sf.create_map(*pairs), sf.col("kind"))


# --- hours -------------------------------------------------------------------------------------


def suspects(sums: DataFrame, copies: DataFrame, *, every: bool) -> DataFrame:
    """Return the hours that differ between copies, or ``every`` hour, with ``sums``: an array of
    node, count and hash of each copy. ``copies``: for each shard, the ``nodes`` that are compared.
    """
    said = sf.struct("count", "hash")
    hours = (
        sums.groupBy(*HOUR)
        .agg(
            sf.min(said).alias("least"),
            sf.max(said).alias("most"),
            sf.collect_list(sf.struct("node", "count", "hash")).alias("sums"),
        )
        .join(sf.broadcast(copies), SHARD)
    )
    if not every:
        hours = hours.where("size(sums) < size(nodes) or least != most")
    return hours.select(*HOUR, "sums")


def wrong_hours(
    suspected: DataFrame, logged: DataFrame, copies: DataFrame, unreadable: DataFrame, hashed: str
) -> DataFrame:
    """Return the readable hours of copies that differ from the log in count or hash, columns
    ``WRONG``. ``logged`` has the hash to sum up in the column ``hashed``, and all records of
    ``suspected`` hours.
    """
    right = logged.groupBy(*HOUR).agg(
        sf.count("*").alias("log_count"), sum64(sf.col(hashed)).alias("log_hash")
    )
    told = suspected.select(*HOUR, sf.inline("sums"))
    hours = suspected.select(*HOUR).union(right.select(*HOUR)).distinct()
    by_node = copies.select(*SHARD, sf.explode("nodes").alias("node"))
    held = (
        hours.join(sf.broadcast(by_node), SHARD)
        .join(told, PLACE, "left")
        .join(right, HOUR, "left")
        .na.fill(0, ["count", "hash", "log_count", "log_hash"])
        .where("count != log_count or hash != log_hash")
    )
    return outside(held, unreadable).select(*PLACE, "count", "log_count")


def outside(hours: DataFrame, ranges: DataFrame) -> DataFrame:
    """Return the hours of copies that no range of the same copy overlaps."""
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
        wrong.join(known, PLACE, "left_anti")
        .join(unjudged, PLACE, "left_anti")
        .join(told, PLACE, "left")
        .withColumns({"kind": kind, "detail": sf.concat(counts, why)})
        .drop("stop_ms")
        .transform(as_findings)
    )


def damage_findings(unreadable: DataFrame) -> DataFrame:
    found = unreadable.withColumn("kind", sf.lit("damaged")).withColumnRenamed("why", "detail")
    return as_findings(found)


def plan_steps(found: DataFrame, shards: DataFrame) -> list[RepairStep]:
    """Return a step for each copy with findings that a rebuild from the log repairs. ``shards``:
    for each shard its ``topic_id``.
    """
    kinds = (*OF_RECORDS, "damaged")
    counts = [sf.count_if(sf.col("kind") == kind).alias(kind) for kind in kinds]
    wrong = found.where(sf.col("kind").isin(*kinds)).groupBy(*COPY).agg(*counts)
    steps = []
    for row in wrong.join(sf.broadcast(shards), SHARD).orderBy(*COPY).collect():
        why = ", ".join(f"{row[kind]} {kind}" for kind in kinds if row[kind])
        node, topic, partition = (row[name] for name in COPY)
        steps.append(
            RepairStep(
                node=node, topic=topic, topic_id=row["topic_id"], partition=partition, why=why
            )
        )
    return steps
