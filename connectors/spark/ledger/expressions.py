"""Column expressions that ledger rows of source records and of outputs share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from connectors.spark.common.frames import or_false
from connectors.spark.ledger.facts import SOURCE
from connectors.spark.ledger.rows import COLUMNS, NO_ID, TYPES, LedgerRow

COMPLETE: Final = 0
HASHED: Final = 1
DOUBTFUL: Final = 2
ORDINARY: Final = 3
"""Values of ``reading``, which says what is left to do for a record. ``COMPLETE``: nothing, its
ledger row is complete; ``HASHED``: Python must hash its key, and check whether the home of its id
is elsewhere; ``DOUBTFUL``: Python must read it and make the row; ``ORDINARY``: it is a record of
another producer in a topic of outputs, which is only counted."""

RECORD: Final = ("topic", "partition", "offset", "timestamp_ms", "key", "value", "headers")
"""Columns of records, as in ``topics.ROW_SCHEMA``. The input may have a further column,
``value_hash`` (long), for values of which only the hash was kept."""

_DIGITS_MAX: Final = 18
# Characters of header names for which the service refuses a record; Java puts the second in place
# of bytes that are not UTF-8.
ODD_IN_NAMES: Final = ("\0", "\N{REPLACEMENT CHARACTER}")


def exact_number(text: Column, digits_max: int = _DIGITS_MAX) -> Column:
    """Return a column: the number in ``text``, null if it has other characters or a
    leading zero.
    """
    number = text.try_cast("bigint")
    is_exact = number.between(0, 10**digits_max - 1) & (number.cast("string") == text)
    return sf.when(is_exact, number)


def content(records: DataFrame, own: Column) -> Column:
    """Return the column equal to ``rows.content_hash``; ``own``: the headers to hash."""
    hashed = sf.when(sf.col("value").isNotNull(), sf.xxhash64("value"))
    if "value_hash" in records.columns:
        hashed = sf.coalesce(hashed, sf.col("value_hash"))
    return sf.xxhash64(sf.col("key").isNull(), sf.col("key"), hashed.isNull(), hashed, own)


def id_hash(record_id: Column) -> Column:
    """Return the column equal to ``rows.id_hash``; 0 where the id is null."""
    return sf.when(record_id.isNull(), NO_ID).otherwise(sf.xxhash64(record_id).bitwiseOR(sf.lit(1)))


def has_readable_names() -> Column:
    """Return a column: whether the service reads every header name of a record as Java does."""
    return ~or_false(has_in_names("headers", ODD_IN_NAMES))


def has_in_names(headers: str, texts: Sequence[str]) -> Column:
    """Return a column: whether one of the texts is in the names of a column of headers, put one
    behind the other.
    """
    joined = sf.array_join(f"{headers}.key", "")
    return reduce(or_, (sf.contains(joined, sf.lit(text)) for text in texts))


def row_with(*kept: str, **given: Column) -> list[Column]:
    """Return all columns of a ledger row in order, with the defaults of ``LedgerRow``."""
    usual = LedgerRow(0, 0, SOURCE)._asdict()
    columns = {name: sf.lit(value) for name, value in usual.items()}
    columns |= {name: sf.col(name) for name in kept} | given
    return [columns[name].cast(TYPES[name]).alias(name) for name in COLUMNS]


CLASSIFIED: Final = (
    *("shard", "offset", "role", "kind", "due_ms", "at_ms", "content", "topic", "partition"),
    *("place", "by", "id_hash", "id"),
)
"""Columns of a ledger row that are made here; the others are the same in all rows made here, or
follow from these: each column that goes to Python takes time."""


def classified(
    read: DataFrame,
    *,
    role: int,
    key: Column,
    is_doubtful: Column,
    content: Column | None = None,
    **columns: Column,
) -> DataFrame:
    """Return one row for each record in ``read``, with the columns ``CLASSIFIED``, ``reading``,
    ``key`` and ``record`` (JSON). Where ``reading`` is ``DOUBTFUL`` or ``ORDINARY``, those of
    ``CLASSIFIED`` mean nothing, except that ``role`` tells source records from outputs.

    Args:
        read: records, with the column ``reading``.
        role: of the records that need not be read in Python.
        key: becomes the column ``key`` where ``reading`` is ``HASHED``.
        is_doubtful: whether to keep the whole record in the column ``record``; else it is null.
        content, columns: expressions for columns of ``CLASSIFIED`` by name; if there is none, the
            column has its default in ``LedgerRow``.
    """
    record = sf.struct(*(name for name in (*RECORD, "value_hash") if name in read.columns))
    # Without a condition on each: Java compiles no method that is longer than 8,000 bytes.
    if content is not None:
        columns["content"] = sf.when(sf.col("reading") <= HASHED, content)
    made = row_with(role=sf.lit(role), at_ms=sf.col("timestamp_ms"), **columns)
    return read.select(
        *(column for name, column in zip(COLUMNS, made, strict=True) if name in CLASSIFIED),
        "reading",
        sf.when(sf.col("reading") == HASHED, key).cast("binary").alias("key"),
        # As one column of text: with each row, Spark asks every nested column for its size.
        sf.when(is_doubtful, sf.to_json(record)).alias("record"),
    )
