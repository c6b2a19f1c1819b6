"""Reads the digest topic's cut rows and hour rows (``digests``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from connectors.spark.reconcile.compare import COPY, COPY_TYPES, frame_of
from connectors.spark.reconcile.digests import CUTS_KEPT, Comparison, CutAt
from delayservice.replicas.digest_rows import decode_cut

_AT_CUT: Final = pa.schema(
    {**COPY_TYPES, "cut_life": pa.string(), "cut_row": pa.int64(), "at_cut": pa.int64()}
)
_HOUR: Final = "life string, cut bigint, count bigint, hash string"


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


def newest_cuts(rows: DataFrame) -> list[CutAt]:
    """Return the ``CUTS_KEPT`` newest cut rows of each copy since its last tombstone."""
    copy = Window.partitionBy(*COPY)
    retired = sf.max(sf.when(sf.col("value").isNull(), sf.col("row"))).over(copy)
    rank = sf.row_number().over(copy.orderBy(sf.desc("row")))
    newest = (
        rows.where("kind = 'c'")
        .withColumns({"retired": retired, "rank": rank})
        .where(f"row > coalesce(retired, -1) and rank <= {CUTS_KEPT}")
        .select("row", "value")
    )
    found = ((row, decode_cut(value)) for row, value in newest.toLocalIterator())
    return [CutAt(row, cut) for row, cut in found if cut is not None]


def hours_at(rows: DataFrame, compared: Iterable[Comparison]) -> DataFrame:
    """Return the digest at the compared cut of each hour of every compared copy, columns
    ``compare.SUMS``.

    It is the newest hour row before the cut row. A row of another ``life`` (name that the copy got
    when it was built), or of a later checkpoint, is left out: the sums then differ from the cut's.
    """
    rows_at_cut = (at for one in compared for at in one.nodes.values() if at is not None)
    cuts = [(*at.copy, at.cut.life, at.row, at.cut.cut) for at in rows_at_cut]
    at_cut = sf.broadcast(frame_of(rows.sparkSession, cuts, _AT_CUT))
    return (
        rows.where("kind = 'h'")
        .join(at_cut, COPY)
        .where("row < cut_row")
        .groupBy(*COPY, "hour_ms", "cut_life", "at_cut")
        .agg(sf.from_json(sf.max_by("value", "row"), _HOUR).alias("said"))
        .where("said.life = cut_life and said.cut <= at_cut")
        .select(*COPY, "hour_ms", "said.count", from_hex("said.hash").alias("hash"))
    )


def from_hex(digits: str) -> Column:
    # To base -10: to a signed number of 64 bits.
    return sf.conv(digits, 16, -10).cast("bigint")
