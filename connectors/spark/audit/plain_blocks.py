"""Finds, without a join, the records without ids that were delivered correctly.

Within a block of neighbouring offsets, hashes of the settled records are compared with hashes of
the deliveries. If the two sets are equal, the block is *even*: all its settled records were
delivered correctly, as a hash covers offset, due time, content and target. Records of other blocks
are matched with their outputs one by one.

Functions take and return data frames, on the session of the input, and need no Kafka.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from connectors.spark.audit.rules import Rules
from connectors.spark.common.frames import or_false
from connectors.spark.ledger.facts import DELIVERED, NEVER_MS, SOURCE
from connectors.spark.ledger.rows import COLUMNS, NO_ID, NO_SHARD
from delayservice.contract.entry import SCHEDULE

# Size of a block of neighbouring offsets that are compared together: 2 to this power.
BLOCK_BITS: Final = 8
BLOCK: Final = ["shard", "block"]

# Columns with two cursors of a shard, first read before the ends of the logs and last after them: K
# (_ms in epoch ms, _at as offset) and H (_h, offset).
CURSORS: Final = (
    "shard long, first_ms long, first_at long, first_h long, "
    "last_ms long, last_at long, last_h long"
)


def is_plain() -> Column:
    # Without further facts (more), and without a target partition that the record names.
    is_source = (
        (sf.col("role") == SOURCE) & (sf.col("kind") == SCHEDULE) & (sf.col("partition") < 0)
    )
    return (
        (is_source | (sf.col("role") == DELIVERED))
        & sf.col("more").isNull()
        & (sf.col("id_hash") == NO_ID)
        & (sf.col("shard") != NO_SHARD)
    )


def blocks_of(plain: DataFrame, rules: Rules) -> DataFrame:
    """Return one row for each block of neighbouring offsets.

    Returns:
        ``shard``, ``block``; ``is_even``: whether each record of the block is either pending or
        correctly delivered, and it has no other deliveries; ``sound`` and ``pending``: number of
        settled and of pending records; ``at_ms``: time of the block's first delivery, epoch ms;
        null: it has none.
    """
    is_source = sf.col("role") == SOURCE
    is_due = is_source & has_settled("last")
    is_waiting = is_source & is_pending(rules)
    is_delivery = ~is_source & _is_delivered_well(rules)
    asked = sf.xxhash64("offset", "due_ms", "content", "topic")
    step = sf.when(is_due, 1).when(is_delivery, -1).otherwise(0)
    told = with_cursors(with_block(plain), rules).select(
        *BLOCK,
        step.alias("step"),
        sf.when(step != 0, asked).otherwise(0).alias("asked"),
        or_false(is_due | is_waiting | is_delivery).alias("is_usual"),
        sf.when(is_source & (step == 0), 1).otherwise(0).alias("waits"),
        sf.when(~is_source, sf.col("at_ms")).alias("at_ms"),
    )
    is_even = (sf.sum("step") == 0) & (sf.bit_xor("asked") == 0) & sf.every("is_usual")
    return told.groupBy(*BLOCK).agg(
        is_even.alias("is_even"),
        sf.count_if(sf.col("step") > 0).alias("sound"),
        sf.sum("waits").alias("pending"),
        sf.min("at_ms").alias("at_ms"),
    )


def counted(blocks: DataFrame) -> tuple[int, int]:
    row = blocks.agg(sf.sum("sound"), sf.sum("pending")).collect()[0]
    return row[0] or 0, row[1] or 0


def in_blocks(rows: DataFrame, blocks: DataFrame) -> DataFrame:
    chosen = sf.broadcast(blocks.select(*BLOCK))
    return with_block(rows).join(chosen, BLOCK, "left_semi").drop("block")


def waiting(plain: DataFrame, rules: Rules) -> DataFrame:
    # Pending at the cursor which was read after the ends of the logs.
    is_waiting = (sf.col("role") == SOURCE) & ~has_settled("last")
    return with_cursors(plain, rules).where(is_waiting).select(*COLUMNS)


def with_block(rows: DataFrame) -> DataFrame:
    return rows.withColumn("block", sf.shiftright("offset", BLOCK_BITS))


def with_cursors(rows: DataFrame, rules: Rules) -> DataFrame:
    cursors = rows.sparkSession.createDataFrame(_cursors(rules), CURSORS)
    return rows.join(sf.broadcast(cursors), "shard", "left")


def _cursors(rules: Rules) -> list[tuple[int, ...]]:
    return [
        (shard, *own.earlier.key, own.earlier.offset, *own.later.key, own.later.offset)
        for shard, own in rules.shards.items()
    ]


def has_settled(cursor: str, source: str = "") -> Column:
    """Return a column: as ``Cursor.has_settled``, for records without an id."""
    key_ms, offset = sf.col(f"{source}key_ms"), sf.col("offset")
    k_ms, k_at = sf.col(f"{cursor}_ms"), sf.col(f"{cursor}_at")
    by_key = (key_ms < k_ms) | ((key_ms == k_ms) & (offset <= k_at))
    return (offset < sf.col(f"{cursor}_h")) & by_key


def is_pending(rules: Rules, source: str = "") -> Column:
    """Return a column: whether a record without an id is neither settled nor overdue."""
    since_ms = sf.greatest(f"{source}key_ms", f"{source}at_ms")
    return ~has_settled("first", source) & (since_ms >= rules.overdue_since_ms)


def is_in_its_partition(rules: Rules, named: Column, output: str = "") -> Column:
    """Return a column: whether a delivery is in the partition that the record (``named``) or its
    key chooses, by the present number of partitions.
    """
    topic, lies, hashed = (sf.col(f"{output}{name}") for name in ("topic", "partition", "key_hash"))
    counts = sf.lit(0)
    for count, topics in rules.topics_by_partitions().items():
        counts = sf.when(topic.isin(*topics), count).otherwise(counts)
    by_key = (hashed < 0) | (sf.try_mod(hashed, counts) == lies)
    return sf.when(named >= 0, named == lies).otherwise(by_key)


def _is_delivered_well(rules: Rules) -> Column:
    late_ms = NEVER_MS if rules.late_ms is None else rules.late_ms
    after_ms = sf.col("at_ms") - sf.col("due_ms")
    return after_ms.between(-rules.early_ms, late_ms) & is_in_its_partition(rules, sf.lit(-1))
