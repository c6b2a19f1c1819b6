"""Derives the ledger: a row for each source record, and for each output that settles one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from connectors.spark.common.cut import Cut
from connectors.spark.common.frames import table
from connectors.spark.ledger.facts import (
    KIND_WORDS,
    OUTCOME,
    OUTCOME_NAMES,
    ROLE_WORDS,
    SOURCES,
)
from connectors.spark.ledger.native import (
    classified_deliveries,
    classified_outcomes,
    classified_sources,
)
from connectors.spark.ledger.rows import COLUMNS, LEDGER, Ledger
from connectors.spark.ledger.unread import completed

__all__ = ["LEDGER", "ledger"]


def ledger(
    sources: DataFrame, outputs: DataFrame, cut: Cut, secrets: Sequence[bytes] = ()
) -> DataFrame:
    """Return the ledger: a row for each source record and for each output that settles one, at a
    cut.

    Args:
        sources: records of the delay topics from any table, with the columns of
            ``topics.ROW_SCHEMA``, and ``value_hash`` where only the hash of a value was kept.
        outputs: records of the target topics, the dead-letter topic and the outcome topic, with the
            same columns as ``sources``.
        cut: offsets, cursors and contracts.
        secrets: cluster secrets, to detect forged requeued records; empty: all count as genuine.

    Returns:
        ``topic``, ``partition``, ``offset``: place of the source record; ``role``: ``source``, or
        what an output is, such as ``delivered``; ``kind``: ``schedule``, ``cancel``, …, or the
        outcome; ``id``; ``due_at``, ``written_at``: timestamps; ``target``: name of the topic that
        a source record asks for, or that an output is in, with ``target_partition`` and
        ``target_offset``; ``row``: the same in numbers and hashes (``LEDGER``), which
        ``audit.findings`` reads. ``topic`` is null in rows that only count records.
    """
    reading = Ledger.of(cut, secrets)
    is_outcome = sf.col("topic") == cut.outcomes
    deliveries = classified_deliveries(outputs.where(~is_outcome), reading)
    outcomes = classified_outcomes(outputs.where(is_outcome), reading)
    classified = classified_sources(sources, reading).unionByName(deliveries)
    return _readable(completed(classified.unionByName(outcomes), reading), reading)


def _readable(rows: DataFrame, reading: Ledger) -> DataFrame:
    spark = rows.sparkSession
    places = [(shard, *place) for place, shard in reading.shards.items()]
    shards = table(spark, "shard long, of_topic string, of_partition int", places)
    hashes = [(number, name) for name, number in reading.topics.items()]
    topics = table(spark, "topic long, target string", hashes)
    role, kind, is_source = sf.col("role"), sf.col("kind"), sf.col("role").isin(*SOURCES)
    of_source = _named(kind, KIND_WORDS)
    of_output = sf.when(role == OUTCOME, _named(kind, dict(enumerate(OUTCOME_NAMES))))
    return (
        rows.withColumn("row", sf.struct(*COLUMNS))
        .join(sf.broadcast(shards), "shard", "left")
        .join(sf.broadcast(topics), "topic", "left")
        .select(
            sf.col("of_topic").alias("topic"),
            sf.col("of_partition").alias("partition"),
            "offset",
            _named(role, ROLE_WORDS).alias("role"),
            sf.when(is_source, of_source).otherwise(of_output).alias("kind"),
            sf.col("id").cast("string").alias("id"),
            sf.when(sf.col("due_ms") > 0, sf.timestamp_millis("due_ms")).alias("due_at"),
            sf.timestamp_millis("at_ms").alias("written_at"),
            "target",
            sf.when(sf.col("row.partition") >= 0, sf.col("row.partition")).alias(
                "target_partition"
            ),
            sf.when(~is_source, sf.col("place")).alias("target_offset"),
            "row",
        )
    )


def _named(number: Column, names: Mapping[int, str]) -> Column:
    found = sf.lit(None)
    for one, name in names.items():
        found = sf.when(number == one, name).otherwise(found)
    return found
