"""The audit's two shuffles: rows of the ledger to judged rows, and those to decided ones.

DataFrame in, DataFrame out, on the session of what is given; nothing here knows Kafka or a cut.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from connectors.spark.audit.judge import CERTAIN, FOUND, UNJUDGED
from connectors.spark.audit.rules import Rules
from connectors.spark.audit.verdicts import JUDGED, LINE, PASSED, Court, IdCourt, Passed

_BLOCK_BITS: Final = 13
"""Records of so many neighbouring offsets are judged by one task: their rows pack well."""


def judge_records(ledger: DataFrame, rules: Rules, tasks: int) -> DataFrame:
    """Judge each record by itself.

    Args:
        ledger: rows of ``ledger.rows.LEDGER``.
        rules: what to judge by.
        tasks: of the shuffle.

    Returns:
        Rows of ``JUDGED``.
    """
    block = sf.shiftright("offset", _BLOCK_BITS)
    return (
        ledger.repartition(tasks, "shard", block)
        .sortWithinPartitions("shard", "offset", "role")
        .mapInArrow(Court(rules).judge, JUDGED)
    )


def decide_by_ids(judged: DataFrame, rules: Rules, tasks: int) -> DataFrame:
    """Decide what depends on other records of the same id.

    Args:
        judged: what ``judge_records`` made of all records; it is read twice.
        rules: what to judge by.
        tasks: of the shuffle.

    Returns:
        Certain rows of ``JUDGED``: findings, and what could not be judged.
    """
    verdict, when = sf.col("verdict"), sf.col("when")
    certain = judged.where(verdict.isin(FOUND, UNJUDGED) & (when == CERTAIN))
    passed: dict[int, list[tuple[int, int]]] = {}
    blocks = judged.where(verdict == PASSED).groupBy("shard", "offset")
    for row in blocks.agg(sf.min("at_ms").alias("at_ms")).collect():
        passed.setdefault(row["shard"], []).append((row["offset"], row["at_ms"]))
    by_id = IdCourt(rules, {shard: Passed(held) for shard, held in passed.items()})
    decided = (
        judged.where((verdict == LINE) | (when != CERTAIN))
        .repartition(tasks, "shard", "record_id")
        .sortWithinPartitions("shard", "record_id", "offset")
        .mapInArrow(by_id.judge, JUDGED)
    )
    return certain.unionByName(decided)
