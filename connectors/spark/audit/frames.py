"""Audits data frames: takes rows of the ledger (source records and outputs), returns findings.

Functions run on the session of their input and need no Kafka. ``engine`` stores the result of each;
``findings`` combines them for other callers.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from connectors.spark.audit.evidence import Evidence, Strictness, all_of, rules_of
from connectors.spark.audit.match import ODD, SOUND, UNMATCHED, match, unpaired
from connectors.spark.audit.plain_blocks import BLOCK_BITS
from connectors.spark.audit.row_judges import COUNT, LINE, PassedTimes, decide_by_ids, judge_records
from connectors.spark.audit.rules import Rules
from connectors.spark.audit.verdicts import CERTAIN, FOUND, UNJUDGED, with_ids
from connectors.spark.common.cut import Cut
from connectors.spark.ledger.facts import NAMED
from connectors.spark.ledger.rows import NO_SHARD, name_hash

# Largest number of offset blocks of which the driver keeps the time when H had passed them.
_PASSED_MAX: Final = 500_000
_USUAL: Final = Strictness()


def findings(
    ledger: DataFrame, cut: Cut, evidence: Evidence | None = None, strictness: Strictness = _USUAL
) -> DataFrame:
    """Return the findings about the records of a ledger, and the records that could not be
    judged.

    Args:
        ledger: result of ``connectors.spark.ledger.ledger``. It is read several times: persist or
            write it first if reading is slow.
        cut: the cut at which the ledger was made.
        evidence: facts about the logs; None: retention has deleted nothing.
        strictness: limits to judge by.

    Returns:
        Columns of ``FINDING`` and ``is_finding``, which is false for records that could not be
        judged; their kind is the reason. If records have ids, a Spark job runs before this returns.
    """
    rules = rules_of(cut, all_of(cut) if evidence is None else evidence, strictness)
    matched = match(ledger, rules)
    odd = unpaired(matched.where(sf.col("status").isin(ODD, UNMATCHED)))
    judged = judge_records(odd.unionByName(apart(ledger)), rules, keeps=False)
    offsets = sum(span.end - span.start for span in cut.spans.values())
    decided = decide(judged, passed(matched, offsets), rules)
    is_finding = sf.col("verdict") == FOUND
    return named(decided, cut, rules).select("*", is_finding.alias("is_finding")).drop("verdict")


def apart(ledger: DataFrame) -> DataFrame:
    return ledger.where((sf.col("shard") == NO_SHARD) | (sf.col("role") == NAMED))


def passed(matched: DataFrame, offsets: int, even: DataFrame | None = None) -> PassedTimes:
    """Return times by which H had passed blocks of neighbouring offsets, from right settlements."""
    bits = max(BLOCK_BITS, (offsets // _PASSED_MAX).bit_length())
    sound = matched.where(sf.col("status") == SOUND)
    block = sf.shiftright("offset", BLOCK_BITS).alias("block")
    told = sound.select("shard", block, sf.col("o_at_ms").alias("at_ms"))
    if even is not None:
        told = told.unionByName(even.where("at_ms is not null").select("shard", "block", "at_ms"))
    wide = sf.shiftright("block", bits - BLOCK_BITS).alias("block")
    blocks = told.groupBy("shard", wide).agg(sf.min("at_ms"))
    return PassedTimes(bits, ((row[0], row[1], row[2]) for row in blocks.collect()))


def decide(judged: DataFrame, known: PassedTimes, rules: Rules) -> DataFrame:
    """Return the verdicts that count, with the columns of ``row_judges.JUDGED``."""
    is_certain = ~sf.col("verdict").isin(LINE, COUNT) & (sf.col("when") == CERTAIN)
    return judged.where(is_certain).unionByName(decide_by_ids(judged, known, rules))


def named(decided: DataFrame, cut: Cut, rules: Rules) -> DataFrame:
    """Return findings and unjudged records (``FINDING``, ``verdict``), with names in place of
    hashes.
    """
    spark = decided.sparkSession
    topics = spark.createDataFrame(list(rules.topics.items()), "target long, target_topic string")
    places = [(name_hash(shard.name), *shard.place) for shard in cut.shards]
    shards = spark.createDataFrame(places, "shard long, topic string, partition int")
    return (
        decided.where(sf.col("verdict").isin(FOUND, UNJUDGED))
        .join(sf.broadcast(shards), "shard", "left")
        .join(sf.broadcast(topics), "target", "left")
        .select(
            "kind",
            sf.coalesce("topic", "target_topic").alias("topic"),
            sf.coalesce("partition", "target_partition").alias("partition"),
            sf.coalesce("offset", "target_offset").alias("offset"),
            "source",
            sf.col("target_topic").alias("target"),
            *("target_partition", "target_offset", "due_ms", "at_ms", "detail", "verdict"),
        )
        .transform(with_ids)
    )
