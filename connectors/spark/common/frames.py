"""Small helpers for data frames."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf


def kept(rows: DataFrame, path: str, *by: str) -> DataFrame:
    """Write rows to ``path`` and read them there; ``by``: columns whose values are folders."""
    rows.write.mode("overwrite").partitionBy(*by).parquet(path)
    return rows.sparkSession.read.schema(rows.schema).parquet(path)


def last_header(name: str) -> Column:
    """Return the value of the last header of a name, of records; null where there is none."""
    found = sf.filter("headers", lambda header: header["key"] == name)
    return sf.try_element_at(found, sf.lit(-1))["value"]


def counts_by(column: str, rows: DataFrame) -> dict[Any, int]:
    """Return how many rows have each value of a column, in the order of the values."""
    counted = rows.groupBy(column).count().orderBy(column)
    return {row[column]: row["count"] for row in counted.collect()}


def or_false(told: Column) -> Column:
    """Return a condition that is false where it is null."""
    return sf.coalesce(told, sf.lit(False))  # noqa: FBT003  # a literal of Spark's
