"""Brings source records and what settles them together, by one join: what nearly all pairs need.

DataFrame in, DataFrame out, on the session of what is given; nothing here knows Kafka.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from connectors.spark.audit.rules import Rules
from connectors.spark.common.frames import or_false
from connectors.spark.ledger.facts import DELIVERED, NAMED, NEVER_MS, REMEMBERED, SOURCE
from connectors.spark.ledger.rows import COLUMNS, LEDGER, NO_ID, NO_SHARD

SOUND: Final = 0
PENDING: Final = 1
ODD: Final = 2
UNMATCHED: Final = 3
"""Values of ``status``: a plain record and its one delivery, with nothing wrong; a plain record
that needs no settlement yet; what has to be judged in Python; an output without its record."""

_OF_SOURCE: Final = ("role", "key_ms", "due_ms", "at_ms", "content", "topic", "partition", "place")
_SOURCE_ONLY: Final = ("key_hash", "id_hash", "more")
_OF_OUTPUT: Final = ("role", "due_ms", "at_ms", "content", "topic", "partition", "place")
_OUTPUT_ONLY: Final = ("key_hash", "more")
_CURSOR: Final = (
    "shard long, first_ms long, first_at long, first_h long, "
    "last_ms long, last_at long, last_h long"
)
"""Keys and offsets of the earlier and of the later cursor of a shard."""


def match(ledger: DataFrame, rules: Rules) -> DataFrame:
    """Return one row for each pair of a record and an output of it; of what has no counterpart,
    with nulls in place of that. Rows of role ``NAMED`` and of ``NO_SHARD`` are left out.

    Args:
        ledger: rows of ``ledger.rows.LEDGER``.
        rules: what to judge by.

    Returns:
        ``shard``, ``offset``, ``status``; ``s_*``: columns of the record; ``o_*``: of the output.
        Of what is ``SOUND`` only what ``remembered`` needs.
    """
    is_source = sf.col("role").isin(SOURCE, REMEMBERED)
    of_shards = ledger.where((sf.col("shard") != NO_SHARD) & (sf.col("role") != NAMED))
    sources = of_shards.where(is_source).select(
        "shard", "offset", *_prefixed("s_", (*_OF_SOURCE, *_SOURCE_ONLY))
    )
    of_record = Window.partitionBy("shard", "offset")
    outputs = (
        of_shards.where(~is_source)
        .withColumn("outputs", sf.count("*").over(of_record))
        .select("shard", "offset", "outputs", *_prefixed("o_", (*_OF_OUTPUT, *_OUTPUT_ONLY)))
    )
    cursors = ledger.sparkSession.createDataFrame(_cursors(rules), _CURSOR)
    joined = sources.join(outputs, ["shard", "offset"], "full").join(
        sf.broadcast(cursors), "shard", "left"
    )
    status = (
        sf.when(or_false(_is_sound(rules)), SOUND)
        .when(or_false(_is_pending(rules)), PENDING)
        .when(sf.col("s_role").isNull(), UNMATCHED)
        .otherwise(ODD)
    )
    told = joined.withColumn("status", status.cast("byte"))
    is_sound = sf.col("status") == SOUND
    kept = {"s_role", "o_at_ms", "o_topic", "o_partition", "o_place", "shard", "offset", "status"}
    names = [name for name in told.columns if name[:2] in ("s_", "o_")]
    return told.select(
        "shard",
        "offset",
        "status",
        *(sf.col(n) if n in kept else sf.when(~is_sound, sf.col(n)).alias(n) for n in names),
    )


def _prefixed(prefix: str, names: tuple[str, ...]) -> list[Column]:
    return [sf.col(name).alias(prefix + name) for name in names]


def _cursors(rules: Rules) -> list[tuple[int, ...]]:
    return [
        (shard, *own.earlier.key, own.earlier.offset, *own.later.key, own.later.offset)
        for shard, own in rules.shards.items()
    ]


def _has_settled(cursor: str) -> Column:
    """Return ``Cursor.has_settled`` of a record without an id, as an expression."""
    key_ms, offset = sf.col("s_key_ms"), sf.col("offset")
    k_ms, k_at = sf.col(f"{cursor}_ms"), sf.col(f"{cursor}_at")
    by_key = (key_ms < k_ms) | ((key_ms == k_ms) & (offset <= k_at))
    return (offset < sf.col(f"{cursor}_h")) & by_key


def _is_plain_source() -> Column:
    return (sf.col("s_role") == SOURCE) & sf.col("s_more").isNull()


def _is_sound(rules: Rules) -> Column:
    late_ms = NEVER_MS if rules.late_ms is None else rules.late_ms
    due_ms, at_ms = sf.col("s_due_ms"), sf.col("o_at_ms")
    return (
        _is_plain_source()
        & (sf.col("o_role") == DELIVERED)
        & sf.col("o_more").isNull()
        & (sf.col("outputs") == 1)
        & (sf.col("s_content") == sf.col("o_content"))
        & (sf.col("s_topic") == sf.col("o_topic"))
        & (due_ms == sf.col("o_due_ms"))
        & _is_in_its_partition(rules)
        & (at_ms >= due_ms - rules.early_ms)
        & (at_ms - sf.greatest(due_ms, "s_at_ms") <= late_ms)
        & _has_settled("last")
    )


def _is_in_its_partition(rules: Rules) -> Column:
    """Return whether an output lies where its record names, or where its key belongs."""
    counts = sf.lit(0)
    for count, topics in rules.topics_by_partitions().items():
        counts = sf.when(sf.col("o_topic").isin(*topics), count).otherwise(counts)
    named, lies, hashed = sf.col("s_partition"), sf.col("o_partition"), sf.col("o_key_hash")
    by_key = (hashed < 0) | (sf.try_mod(hashed, counts) == lies)
    return sf.when(named >= 0, named == lies).otherwise(by_key)


def _is_pending(rules: Rules) -> Column:
    since_ms = sf.greatest("s_key_ms", "s_at_ms")
    is_waiting = ~_has_settled("first") & (since_ms >= rules.overdue_since_ms)
    return _is_plain_source() & sf.col("o_role").isNull() & is_waiting


# --- rows of the ledger again --------------------------------------------------------------------


def unpaired(matched: DataFrame) -> DataFrame:
    """Return the rows of ``LEDGER`` that pairs were made of; the record once for each pair."""
    zero, no_id = sf.lit(0), sf.lit(NO_ID)
    source = {name: sf.col(f"s_{name}") for name in (*_OF_SOURCE, *_SOURCE_ONLY)}
    output = {name: sf.col(f"o_{name}") for name in (*_OF_OUTPUT, *_OUTPUT_ONLY)}
    rows = [_row(source), _row(output | {"key_ms": zero, "id_hash": no_id})]
    return (
        matched.select(sf.explode(sf.array(*rows)).alias("row"))
        .select("row.*")
        .where("role is not null")
    )


def of_records(matched: DataFrame) -> DataFrame:
    """Return the rows of ``LEDGER`` of the records in pairs."""
    source = {name: sf.col(f"s_{name}") for name in (*_OF_SOURCE, *_SOURCE_ONLY)}
    return matched.select(_row(source).alias("row")).select("row.*")


def remembered(sound: DataFrame) -> DataFrame:
    """Return rows of role ``REMEMBERED`` of the records in sound pairs."""
    output = {name: sf.col(f"o_{name}") for name in ("at_ms", "topic", "partition", "place")}
    zero = dict.fromkeys(("due_ms", "content", "id_hash"), sf.lit(0))
    fixed = {"role": sf.lit(REMEMBERED), "key_ms": sf.lit(DELIVERED), "key_hash": sf.lit(-1)}
    row = _row(output | zero | fixed | {"more": sf.lit(None)})
    return sound.select(row.alias("row")).select("row.*")


def _row(given: dict[str, Column]) -> Column:
    types = dict(column.split() for column in LEDGER.split(", "))
    made = given | {"shard": sf.col("shard"), "offset": sf.col("offset")}
    return sf.struct(*(made[name].cast(types[name]).alias(name) for name in COLUMNS))
