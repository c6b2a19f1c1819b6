"""Helper functions for Spark data frames."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf


def kept(rows: DataFrame, path: str, *by: str) -> DataFrame:
    """Write rows to ``path`` as Parquet, and return a data frame that reads them from there."""
    rows.write.mode("overwrite").partitionBy(*by).parquet(path)
    return rows.sparkSession.read.schema(rows.schema).parquet(path)


def last_header(name: str) -> Column:
    """Return a column with the value of a record's last header with this name, or null."""
    found = sf.filter("headers", lambda header: header["key"] == name)
    return sf.try_element_at(found, sf.lit(-1))["value"]


def counts_by(column: str, rows: DataFrame) -> dict[Any, int]:
    counted = rows.groupBy(column).count().orderBy(column)
    return {row[column]: row["count"] for row in counted.collect()}


def or_false(told: Column) -> Column:
    return sf.coalesce(told, sf.lit(False))  # noqa: FBT003  # a literal of Spark's
