"""Reads the digest topic's cut rows and hour rows (``digests``), and sums them up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

from connectors.spark.reconcile.digests import CUTS_KEPT, Comparison, CutAt, Retired
from connectors.spark.reconcile.repair_plan import Copy
from delayservice.replicas.digest_rows import decode_cut

SUMS: Final = "node string, topic string, partition int, hour_ms bigint, count bigint, hash bigint"
"""Columns of one hour of one copy: start in epoch ms, number of pending records, and sum of their
hashes modulo 2^64 as a signed number."""

_COPY: Final = ["node", "topic", "partition"]
_HOUR: Final = "life string, cut bigint, count bigint, hash string"
_LOW: Final = 0xFFFF_FFFF
_HEX_HALF: Final = 8


def parse_keys(records: DataFrame) -> DataFrame:
    """Return the records of the digest topic with the fields of their keys as columns.

    Returns:
        ``kind`` (``c``: cut row, ``h``: hour row), ``node``, ``topic``, ``partition``, ``hour_ms``
        (start of the hour, epoch ms; null in cut rows), ``row`` (offset in the digest topic), and
        ``value`` as text (null in a tombstone).
    """
    parts = sf.split(sf.col("key").cast("string"), "/")
    return records.select(
        sf.get(parts, sf.lit(0)).alias("kind"),
        sf.get(parts, sf.lit(1)).alias("node"),
        sf.get(parts, sf.lit(2)).alias("topic"),
        sf.get(parts, sf.lit(3)).try_cast("int").alias("partition"),
        sf.get(parts, sf.lit(4)).try_cast("bigint").alias("hour_ms"),
        sf.col("offset").alias("row"),
        sf.col("value").cast("string").alias("value"),
    )


def newest_cuts(rows: DataFrame) -> list[CutAt | Retired]:
    """Return the ``CUTS_KEPT`` newest cut rows of each copy, tombstones included, unordered."""
    order = Window.partitionBy(*_COPY).orderBy(sf.desc("row"))
    newest = (
        rows.where("kind = 'c'")
        .withColumn("rank", sf.row_number().over(order))
        .where(sf.col("rank") <= CUTS_KEPT)
        .select(*_COPY, "row", "value")
    )
    found: list[CutAt | Retired] = []
    for node, topic, partition, row, value in newest.toLocalIterator():
        cut = None if value is None else decode_cut(value)
        if value is None:
            found.append(Retired(node, topic, partition, row))
        elif cut is not None:
            found.append(CutAt(row, cut))
    return found


def hours_at(spark: SparkSession, rows: DataFrame, compared: Iterable[Comparison]) -> DataFrame:
    """Return the digest at the compared cut of each hour of every compared copy, columns ``SUMS``.

    It is the newest hour row before the cut row. A row of another ``life`` (name that the copy got
    when it was built), or of a later checkpoint, is left out: the sums then differ from the cut's.
    """
    cuts = [(*at.copy, at.cut.life, at.row, at.cut.cut) for one in compared for at in one.rows]
    at_cut = spark.createDataFrame(
        cuts,
        "node string, topic string, partition int, cut_life string, cut_row bigint, at_cut bigint",
    )
    known = rows.where("kind = 'h'").join(sf.broadcast(at_cut), _COPY).where("row < cut_row")
    # By their offsets, so that no text is moved.
    last = known.groupBy(*_COPY, "hour_ms").agg(sf.max("row").alias("row")).select("row")
    return (
        known.join(sf.broadcast(last), "row", "left_semi")
        .withColumn("said", sf.from_json("value", _HOUR))
        .where("said.life = cut_life and said.cut <= at_cut")
        .select(*_COPY, "hour_ms", "said.count", from_hex(sf.col("said.hash")).alias("hash"))
    )


def totals(hours: DataFrame) -> Mapping[Copy, tuple[int, int, int]]:
    """Return by copy the number of hours with records, of records, and the signed sum of hashes."""
    summed = hours.groupBy(*_COPY).agg(
        sf.count("*"), sf.sum("count"), sum64(sf.col("hash")).alias("hash")
    )
    return {
        (node, topic, partition): (hours, records, hashed)
        for node, topic, partition, hours, records, hashed in summed.collect()
    }


def from_hex(digits: Column) -> Column:
    """Return a column with the signed number of 64 bits in 16 hexadecimal digits."""
    high = sf.conv(sf.substring(digits, 1, _HEX_HALF), 16, 10).cast("bigint")
    low = sf.conv(sf.substring(digits, _HEX_HALF + 1, _HEX_HALF), 16, 10).cast("bigint")
    return sf.shiftleft(high, 32).bitwiseOR(low)


def sum64(numbers: Column) -> Column:
    """Return the sum of signed numbers modulo 2^64. Halves are added apart, as Spark's sum must not
    overflow.
    """
    low = sf.sum(numbers.bitwiseAND(sf.lit(_LOW)))
    high = sf.sum(sf.shiftrightunsigned(numbers, 32)) + sf.shiftright(low, 32)
    return sf.shiftleft(high, 32).bitwiseOR(low.bitwiseAND(sf.lit(_LOW)))
