"""Small helpers for data frames."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf


def kept(rows: DataFrame, path: str, *by: str) -> DataFrame:
    """Return rows once they are written to ``path``, so that they are computed once; ``by``:
    columns whose values are folders.
    """
    rows.write.mode("overwrite").partitionBy(*by).parquet(path)
    return rows.sparkSession.read.schema(rows.schema).parquet(path)


def or_false(told: Column) -> Column:
    """Return a condition that is false where it is null."""
    return sf.coalesce(told, sf.lit(False))  # noqa: FBT003  # a literal of Spark's
