"""Helpers for Spark data frames, and Arrow schemas and batches for rows that Python makes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from delayservice.contract.entry import Headers


def kept(rows: DataFrame, path: str, *by: str) -> DataFrame:
    """Write rows to ``path`` as Parquet, and return a data frame that reads them from there."""
    rows.write.mode("overwrite").partitionBy(*by).parquet(path)
    return rows.sparkSession.read.schema(rows.schema).parquet(path)


def table(spark: SparkSession, ddl: str, rows: Iterable[Sequence[Any]] = ()) -> DataFrame:
    """Return a few rows, which Spark holds in its plan: as a list, Python workers would read them,
    and with none, Spark would not leave out what is done with them.
    """
    schema = arrow_schema(ddl)
    return spark.createDataFrame(pa.Table.from_batches([batch_of(list(rows), schema)]), ddl)


def last_header(name: str) -> Column:
    """Return a column with the value of a record's last header with this name, or null."""
    found = sf.filter("headers", lambda header: header["key"] == name)
    return sf.try_element_at(found, sf.lit(-1))["value"]


def counts_by(column: str, rows: DataFrame) -> dict[Any, int]:
    counted = rows.groupBy(column).count().collect()
    return {row[column]: row["count"] for row in sorted(counted, key=lambda row: str(row[column]))}


def or_false(told: Column) -> Column:
    return sf.coalesce(told, sf.lit(False))  # noqa: FBT003  # a literal of Spark's


_TYPES: Final = {
    "bigint": pa.int64(),
    "long": pa.int64(),
    "int": pa.int32(),
    "byte": pa.int8(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
} | {
    f"array<struct<{name}: string, value: binary>>": pa.list_(
        pa.struct([(name, pa.string()), ("value", pa.binary())])
    )
    for name in ("name", "key")
}
# Comma between two columns of a DDL, but not within the type of a column.
_COMMA: Final = re.compile(r",\s*(?![^<]*>)")


def arrow_schema(ddl: str) -> pa.Schema:
    """Return the schema of columns given as Spark DDL, of the types in ``_TYPES`` only."""
    columns = (column.split(maxsplit=1) for column in _COMMA.split(ddl.strip()))
    return pa.schema([(name, _TYPES[kind]) for name, kind in columns])


def batch_of(rows: Iterable[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def header_lists(column: pa.ListArray) -> tuple[pa.StructArray, list[Headers]]:
    """Return all headers of a column as one flat array (fields ``key`` and ``value``), and a list
    with the headers of each row, as pairs of name and value; empty where the row is null.

    It reads whole columns at a time, as a dictionary for each header would take most of the time.
    """
    bounds = column.offsets.to_pylist()
    first = bounds[0]
    flat = column.values.slice(first, bounds[-1] - first)  # a slice of a batch has all values
    pairs = list(zip(flat.field("key").to_pylist(), flat.field("value").to_pylist(), strict=True))
    return flat, [pairs[start - first : stop - first] for start, stop in pairwise(bounds)]
