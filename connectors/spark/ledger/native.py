"""Rows of the ledger by column expressions: what nearly all records are.

A source record is plain if its headers are a time in digits, a target that the cluster has, and
headers of its own; a delivery, if its headers end as the service ends those of every delivery.
``classified`` makes their rows and marks the others, which ``sources`` and ``outputs`` read.
Both readers make the same rows (``tests/property/test_spark_readers.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from connectors.spark.common.decode import NO_KEY, key_hash
from connectors.spark.common.frames import or_false
from connectors.spark.ledger.facts import DELIVERED, SOURCE
from connectors.spark.ledger.outputs import OutputRows
from connectors.spark.ledger.rows import COLUMNS, LEDGER, NO_ID, NO_SHARD, SCHEMA, Ledger
from connectors.spark.ledger.sources import SourceRows
from delayservice.core import names
from delayservice.core.aliases import KNOWN
from delayservice.core.contract import (
    MAX_DELAY_MS_MAX,
    PAST_DUE_DELIVER,
    UNITS_VERSION,
    Contract,
)
from delayservice.core.record import PARTITION_BY_KEY, PLAIN_DIGITS_MAX
from delayservice.core.targets import Allowlist
from delayservice.core.times import DUE_STOP_MS, FIRST_READINGS, UNIT_READINGS

PLAIN: Final = 0
KEYED: Final = 1
DOUBTFUL: Final = 2
ORDINARY: Final = 3
"""Values of ``reading``: the row is complete; it lacks the hash of its key; the record has to be
read in Python; it is an output of no delay service, and is only counted."""

RECORD: Final = ("topic", "partition", "offset", "timestamp_ms", "key", "value", "headers")
"""Columns of records, as ``topics.ROW_SCHEMA``; ``value_hash`` long may stand beside them, for
values of which only the hash was kept."""

_SPECIAL: Final = sorted(KNOWN | names.HOME_NAMES)
_DIGITS: Final = rf"\A[0-9]{{1,{PLAIN_DIGITS_MAX}}}\z"
_COUNT: Final = r"\A[0-9]{1,18}\z"
_ODD_IN_NAMES: Final = ("\0", "\N{REPLACEMENT CHARACTER}")
"""Java shows what is not UTF-8 as the second, and the service's client cuts names at the first."""
_PLAIN_HEADERS: Final = 2
_TOLD_HEADERS: Final = 3


def ledger_of(classified: DataFrame, ledger: Ledger, *, of_sources: bool) -> DataFrame:
    """Return rows of ``LEDGER`` for records that were classified.

    Args:
        classified: as ``classified_sources`` or ``classified_outputs`` gives them. They are read
            three times: unless that is cheap, write or persist them first.
        ledger: what to read by.
        of_sources: whether they are source records.
    """
    reader = SourceRows(ledger) if of_sources else OutputRows(ledger)
    reading = sf.col("reading")
    plain = classified.where(reading == PLAIN).select(*COLUMNS)
    keyed = classified.where(reading == KEYED).select(*COLUMNS, "record.key")
    doubtful = classified.where(reading == DOUBTFUL).select("record.*")
    return plain.unionByName(keyed.mapInArrow(_with_key_hashes, LEDGER)).unionByName(
        doubtful.mapInArrow(reader.of, LEDGER)
    )


def _with_key_hashes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows with the hash of ``key``, their last column, in ``key_hash``."""
    at = SCHEMA.get_field_index("key_hash")
    for batch in batches:
        hashes = [key_hash(key) for key in batch.column("key").to_pylist()]
        arrays = batch.columns[:-1]
        arrays[at] = pa.array(hashes, pa.int32())
        yield pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


# --- source records ------------------------------------------------------------------------------


def classified_sources(records: DataFrame, ledger: Ledger) -> DataFrame:
    """Return rows of plain source records, and the others as they are.

    Args:
        records: ``RECORD``, of delay topics.
        ledger: what to read by.

    Returns:
        ``LEDGER``, ``reading``, and ``record``: the record where Python has to read it.
    """
    known = sf.filter("headers", lambda header: header["key"].isin(*_SPECIAL))
    own = sf.filter("headers", lambda header: ~header["key"].isin(*_SPECIAL))
    first, second = sf.get("known", sf.lit(0)), sf.get("known", sf.lit(1))
    is_first = first["key"] == names.DELAY_TARGET_TOPIC
    named = sf.when(is_first, first).otherwise(second)
    time = sf.when(is_first, second).otherwise(first)
    since_ms = sf.when(sf.col("time") == names.DELAY_AFTER, sf.col("timestamp_ms")).otherwise(0)
    shards = records.sparkSession.createDataFrame(_shards(ledger), _SHARD)
    read = (
        records.withColumns({"known": known, "own": own})
        .withColumns({"named": named["key"], "target": named["value"].cast("string")})
        .withColumns({"time": time["key"], "text": time["value"].cast("string")})
        .withColumn("due_ms", sf.greatest(sf.col("text").try_cast("bigint") + since_ms, sf.lit(1)))
        .withColumn("shard", sf.xxhash64(sf.concat_ws(":", "topic", "partition")))
        .join(sf.broadcast(shards), "shard", "left")
    )
    is_plain = (
        (sf.size("known") == _PLAIN_HEADERS)
        & (sf.col("named") == names.DELAY_TARGET_TOPIC)
        & sf.col("time").isin(names.DELAY_AT, names.DELAY_AFTER)
        & sf.col("text").rlike(_DIGITS)
        & sf.col("target").isin(*_allowed(ledger))
        & (sf.col("offset") >= sf.col("first"))
        & sf.col("timestamp_ms").between(0, MAX_DELAY_MS_MAX - 1)
        & ((sf.col("due_ms") >= sf.col("surely_ms")) | (sf.col("time") == names.DELAY_AFTER))
        & (sf.col("due_ms") - sf.col("timestamp_ms")).between(sf.col("min_ms"), sf.col("max_ms"))
        & _has_readable_names()
    )
    return _classified(
        read,
        is_plain,
        shard="shard",
        offset="offset",
        role=SOURCE,
        key_ms="due_ms",
        due_ms="due_ms",
        content=content(records, sf.col("own")),
        topic=sf.xxhash64("target"),
        partition=sf.lit(PARTITION_BY_KEY),
        place=sf.lit(0),
    )


_SHARD: Final = "shard long, first long, surely_ms long, min_ms long, max_ms long"
"""How plain records of a shard are read, from the first offset of its newest contract on."""


def _shards(ledger: Ledger) -> list[tuple[int, int, int, int, int]]:
    """Return rows of ``_SHARD``. Nothing on a level topic is plain."""
    newest = {shard: ledger.contracts[place].entries() for place, shard in ledger.shards.items()}
    return [
        (shard, entries[-1][0] if len(entries) > 1 else 0, *_bounds_ms(entries[-1][1]))
        for shard, entries in newest.items()
        if not entries[-1][1].level_ms
    ]


def _bounds_ms(contract: Contract) -> tuple[int, int, int]:
    """Return the earliest number that surely is no number of seconds, and the least and the
    longest delay of a record that is not rolled.
    """
    readings = UNIT_READINGS if contract.version >= UNITS_VERSION else FIRST_READINGS
    least_ms = -DUE_STOP_MS if contract.past_due == PAST_DUE_DELIVER else 0
    window_ms = contract.roll_window_ms - contract.roll_spread_ms
    return readings.surely_ms, least_ms, min(window_ms, contract.max_delay_ms)


def _allowed(ledger: Ledger) -> list[str]:
    """Return the topics of the cluster that every newest contract allows."""
    rules = {
        (topic, ledger.contracts[topic, number].entries()[-1][1]) for topic, number in ledger.shards
    }
    lists = [Allowlist.of_contract(contract, topic) for topic, contract in rules]
    return [n for n in ledger.topics if all(one.denial(n) is None for one in lists)] or [""]


# --- outputs -------------------------------------------------------------------------------------


def classified_outputs(records: DataFrame, ledger: Ledger) -> DataFrame:
    """Return rows of plain deliveries, and the others as they are; as ``classified_sources``.

    Args:
        records: ``RECORD``, of all topics but delay topics.
        ledger: what to read by.
    """
    due, source, settles = (sf.get("headers", sf.size("headers") - at) for at in (3, 2, 1))
    settled, named = settles["value"].cast("string"), source["value"].cast("string")
    suffix = sf.concat(sf.lit(":"), settled)
    shard = sf.substr(named, sf.lit(1), sf.length(named) - sf.length(suffix))
    read = records.withColumns(
        {
            "due": due["value"].cast("string"),
            "settled": settled,
            "shard": sf.when(sf.endswith(named, suffix), sf.xxhash64(shard)),
        }
    )
    is_plain = (
        (sf.size("headers") >= _TOLD_HEADERS)
        & (due["key"] == names.DELAY_DUE_AT)
        & (source["key"] == names.DELAY_SOURCE)
        & (settles["key"] == names.DELAY_SETTLES)
        & sf.col("due").rlike(_COUNT)
        & sf.col("settled").rlike(_COUNT)
        & sf.col("shard").isin(*ledger.shards.values(), NO_SHARD)
        & ~sf.col("topic").isin(*ledger.roles, "")
        & _has_readable_names()
    )
    is_marked = sf.array_contains(sf.col("headers.key"), names.DELAY_SETTLES)
    own = sf.slice("headers", 1, sf.greatest(sf.size("headers") - _TOLD_HEADERS, sf.lit(0)))
    return _classified(
        read,
        is_plain,
        shard="shard",
        offset=sf.col("settled").try_cast("bigint"),
        role=DELIVERED,
        key_ms=sf.lit(0),
        due_ms=sf.col("due").try_cast("bigint"),
        content=content(records, own),
        topic=sf.xxhash64("topic"),
        partition="partition",
        place="offset",
        is_ordinary=~or_false(is_marked) & _has_readable_names(),
    )


# --- both ----------------------------------------------------------------------------------------


def content(records: DataFrame, own: Column) -> Column:
    """Return the hash of key, value and headers: ``rows.content_hash`` as an expression."""
    hashed = sf.when(sf.col("value").isNotNull(), sf.xxhash64("value"))
    if "value_hash" in records.columns:
        hashed = sf.coalesce(hashed, sf.col("value_hash"))
    return sf.xxhash64(sf.col("key").isNull(), sf.col("key"), hashed.isNull(), hashed, own)


def _has_readable_names() -> Column:
    joined = sf.array_join("headers.key", "")
    odd = [sf.contains(joined, sf.lit(text)) for text in _ODD_IN_NAMES]
    return ~or_false(odd[0] | odd[1])


def _classified(
    read: DataFrame,
    is_plain: Column,
    *,
    is_ordinary: Column | None = None,
    role: int,
    **columns: Column | str,
) -> DataFrame:
    reading = sf.when(or_false(is_plain), sf.when(sf.length("key") > 0, KEYED).otherwise(PLAIN))
    if is_ordinary is not None:
        reading = reading.when(is_ordinary, ORDINARY)
    reading = reading.otherwise(DOUBTFUL)
    record = sf.struct(*(name for name in (*RECORD, "value_hash") if name in read.columns))
    given = {**columns, "role": sf.lit(role), "at_ms": sf.col("timestamp_ms")}
    given |= {"key_hash": sf.lit(NO_KEY), "id_hash": sf.lit(NO_ID), "more": sf.lit(None)}
    types = dict(column.split() for column in LEDGER.split(", "))
    made = read.withColumn("reading", reading.cast("byte"))
    return made.select(
        *(
            sf.when(sf.col("reading") <= KEYED, _column(given[name])).cast(types[name]).alias(name)
            for name in COLUMNS
        ),
        "reading",
        sf.when(sf.col("reading").isin(KEYED, DOUBTFUL), record).alias("record"),
    )


def _column(given: Column | str) -> Column:
    return sf.col(given) if isinstance(given, str) else given
