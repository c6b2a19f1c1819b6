"""Reads the digest topic's cut rows and hour rows (``digests``), and sums them up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sf
from xxhash import xxh3_64_intdigest

from connectors.spark.common.frames import arrow_schema, batch_of
from connectors.spark.reconcile.compare import COPY, SHARD
from connectors.spark.reconcile.digests import CUTS_KEPT, Comparison, CutRow, Retired
from connectors.spark.reconcile.repair_plan import Copy
from connectors.spark.reconcile.stored import signed
from delayservice.engine.cursor import Cursor
from delayservice.store.offline import Damage

SUMS: Final = (
    "node string, topic string, partition int, slot_start_ms bigint, count bigint, hash bigint"
)
"""Columns of one slot of one copy: start in epoch ms, number of pending records, and sum of their
hashes modulo 2^64 as a signed number."""

_CUT: Final = (
    "topic_id string, life string, cut bigint, cut_ms bigint, k array<bigint>, h bigint, "
    "stored bigint, from_ms bigint, count bigint, hash string, pending bigint, scanned_ms bigint, "
    "behind boolean, role string, store string, "
    "damaged array<struct<start_ms: bigint, stop_ms: bigint, first_offset: bigint, "
    "stop_offset: bigint, why: string>>"
)
_HOUR_SUMS: Final = (
    "node string, topic string, partition int, "
    "hour_ms bigint, slots bigint, records bigint, hash bigint, print bigint"
)
_HOUR_SCHEMA: Final = arrow_schema(_HOUR_SUMS)
_SLOT_SCHEMA: Final = arrow_schema(SUMS)
_LOW: Final = 0xFFFF_FFFF
_MASK: Final = 2**64 - 1
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


def newest_cuts(rows: DataFrame) -> list[CutRow | Retired]:
    """Return the ``CUTS_KEPT`` newest cut rows of each copy, tombstones included, unordered."""
    order = Window.partitionBy(*COPY).orderBy(sf.desc("row"))
    newest = (
        rows.where("kind = 'c'")
        .withColumn("rank", sf.row_number().over(order))
        .where(sf.col("rank") <= CUTS_KEPT)
        .select(*COPY, "row", sf.from_json("value", _CUT).alias("said"))
        .withColumn("bits", from_hex(sf.col("said.hash")))
    )
    return [_cut_row(row.asDict(recursive=True)) for row in newest.toLocalIterator()]


def _cut_row(row: Mapping[str, object]) -> CutRow | Retired:
    place = {name: row[name] for name in (*COPY, "row")}
    said = row["said"]
    if not isinstance(said, dict):
        return Retired(**place)  # type: ignore[arg-type] # as the schema says
    damaged = tuple(Damage(**damage) for damage in said.pop("damaged") or ())
    k_ms, k_offset = said.pop("k")
    cursor = Cursor((k_ms, k_offset), said.pop("h"))
    said["hash"] = row["bits"]
    return CutRow(**place, **said, cursor=cursor, damaged=damaged)  # type: ignore[arg-type] # ditto


def hours_at(spark: SparkSession, rows: DataFrame, compared: Iterable[Comparison]) -> DataFrame:
    """Return the newest hour row, below the compared cut row, of each hour of every compared copy.

    Returns:
        ``node, topic, partition, hour_ms``; ``from_ms``, start of the first compared slot, epoch
        ms; the ``value`` of the hour row; and from the cut row ``cut_life``, the name of the copy,
        and ``at_cut``, the offset of the checkpoint. A value with another name, or of a later
        checkpoint, must not be used.
    """
    cuts = [
        (*row.copy, row.life, row.row, row.cut, one.from_ms) for one in compared for row in one.rows
    ]
    at_cut = sf.broadcast(
        spark.createDataFrame(
            cuts,
            "node string, topic string, partition int, cut_life string, cut_row bigint, "
            "at_cut bigint, from_ms bigint",
        )
    )
    known = rows.where("kind = 'h'").join(at_cut, COPY).where("row < cut_row")
    # By their offsets, so that no text is moved.
    last = known.groupBy(*COPY, "hour_ms").agg(sf.max("row").alias("row")).select("row")
    # A tombstone has no life; whatever it ends is over in any.
    return known.join(sf.broadcast(last), "row", "left_semi").where("value is not null")


class _Hour(msgspec.Struct):
    """Value of an hour row. ``life``: name that the copy got when it was built; ``cut``: offset of
    the checkpoint; ``slots``: JSON of index, count and hash of each slot that has records.
    """

    life: str
    cut: int
    slot_ms: int
    slots: msgspec.Raw


# (index, count, hash) of each slot of an hour that has records: number of the slot in the hour from
# 0, number of records, and unsigned sum of their hashes.
_Slots: TypeAlias = list[tuple[int, int, int]]

_decode_hour = msgspec.json.Decoder(_Hour).decode

_decode_slots = msgspec.json.Decoder(list[tuple[int, int, str]]).decode


def hour_sums(hours: DataFrame) -> DataFrame:
    """Return ``node, topic, partition, hour_ms``; of the whole hour, to check against the cut row,
    ``slots`` (number with records), ``records`` (number) and ``hash`` (signed sum); and ``print``,
    a hash that is equal for equal compared slots, or null if there are none.
    """
    return hours.mapInArrow(_sum_hours, _HOUR_SUMS)


def _sum_hours(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = [
            (
                *(*copy, hour_ms, len(slots)),
                sum([count for _, count, _ in slots]),
                signed(sum([hashed for _, _, hashed in slots]) & _MASK),
                _print(said, _compared(slots, said.slot_ms, from_ms - hour_ms), len(slots)),
            )
            for copy, hour_ms, from_ms, said, slots in _hours_in(batch)
        ]
        yield batch_of(rows, _HOUR_SCHEMA)


def slot_sums(hours: DataFrame) -> DataFrame:
    """Return the columns ``SUMS`` for each compared slot in these hours."""
    return hours.mapInArrow(_sum_slots, SUMS)


def _sum_slots(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = [
            (*copy, hour_ms + index * said.slot_ms, count, signed(hashed))
            for copy, hour_ms, from_ms, said, slots in _hours_in(batch)
            for index, count, hashed in _compared(slots, said.slot_ms, from_ms - hour_ms)
        ]
        yield batch_of(rows, _SLOT_SCHEMA)


def _hours_in(batch: pa.RecordBatch) -> Iterator[tuple[Copy, int, int, _Hour, _Slots]]:
    # Skipped are rows of another life (name that a copy gets when it is built anew), those with a
    # later checkpoint than the compared one, and those that can't be read.
    columns = (*COPY, "hour_ms", "from_ms", "value", "cut_life", "at_cut")
    for node, topic, partition, hour_ms, from_ms, value, life, cut in zip(
        *(batch.column(name).to_pylist() for name in columns), strict=True
    ):
        try:
            said = _decode_hour(value)
            slots = [(n, count, int(hashed, 16)) for n, count, hashed in _decode_slots(said.slots)]
        except (msgspec.DecodeError, ValueError):  # the rest doesn't make up the cut: it is behind
            continue
        if said.life == life and said.cut <= cut:
            yield (node, topic, partition), hour_ms, from_ms, said, slots


def _compared(slots: _Slots, slot_ms: int, first_ms: int) -> _Slots:
    return slots if first_ms <= 0 else [slot for slot in slots if slot[0] * slot_ms >= first_ms]


def _print(said: _Hour, compared: _Slots, filled: int) -> int | None:
    # If all slots of the hour are compared, the node's own text is hashed: nodes write equal texts
    # for equal slots.
    text = bytes(said.slots)
    if len(compared) < filled:
        text = msgspec.json.encode([(n, count, f"{hashed:016x}") for n, count, hashed in compared])
    return signed(xxh3_64_intdigest(text, said.slot_ms)) if compared else None


def totals(hours: DataFrame) -> dict[Copy, tuple[int, int, int]]:
    """Return by copy the number of slots with records, of records, and the signed sum of hashes."""
    summed = hours.groupBy(*COPY).agg(
        sf.sum("slots").alias("slots"),
        sf.sum("records").alias("records"),
        sum64(sf.col("hash")).alias("hash"),
    )
    return {
        (row["node"], row["topic"], row["partition"]): (row["slots"], row["records"], row["hash"])
        for row in summed.collect()
    }


def differing_hours(
    spark: SparkSession, hours: DataFrame, compared: Iterable[Comparison]
) -> DataFrame:
    """Return ``topic, partition, hour_ms`` where compared slots are not equal in all copies."""
    nodes = sf.broadcast(
        spark.createDataFrame(
            [(*one.place, node, len(one.nodes)) for one in compared for node in one.nodes],
            "topic string, partition int, node string, copies int",
        )
    )
    return (
        hours.where("print is not null")
        .join(nodes, COPY)
        .groupBy(*SHARD, "hour_ms")
        .agg(
            sf.min("print").alias("least"),
            sf.max("print").alias("most"),
            sf.count("*").alias("rows"),
            sf.first("copies").alias("copies"),
        )
        .where("rows < copies or least != most")
        .select(*SHARD, "hour_ms")
    )


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
