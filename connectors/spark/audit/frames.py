"""The audit as functions of data frames: rows of the ledger in, findings out.

They run on the session of what they are given, whatever it is read from, and know no Kafka. The
engine writes down what goes from one to the next; ``findings`` puts them together for others.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from connectors.spark.audit.court import COUNT, LINE, PassedTimes, decide_by_ids, judge_records
from connectors.spark.audit.evidence import Evidence, Strictness, all_of, rules_of
from connectors.spark.audit.match import ODD, SOUND, UNMATCHED, match, unpaired
from connectors.spark.audit.rules import Rules
from connectors.spark.audit.sieve import BLOCK_BITS
from connectors.spark.audit.verdicts import CERTAIN, FOUND, UNJUDGED, with_ids
from connectors.spark.common.cut import Cut
from connectors.spark.ledger.facts import NAMED
from connectors.spark.ledger.rows import NO_SHARD, name_hash

_PASSED_MAX: Final = 500_000
"""Blocks of offsets of which the driver keeps when H had passed them."""
_USUAL: Final = Strictness()


def findings(
    ledger: DataFrame, cut: Cut, evidence: Evidence | None = None, strictness: Strictness = _USUAL
) -> DataFrame:
    """Return what is wrong with the records of a ledger, and what could not be judged.

    Args:
        ledger: as ``connectors.spark.ledger.ledger`` gives it. It is read several times: persist
            or write it first if that costs.
        cut: the cut that it was read at.
        evidence: what is known of the logs; None: they are whole.
        strictness: how strictly to judge.

    Returns:
        Rows of ``FINDING`` and ``is_finding``: false of what could not be judged, whose kind is the
        reason. Where records bear ids, a job runs before this returns.
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
    """Return the rows of the ledger that are judged without being matched."""
    return ledger.where((sf.col("shard") == NO_SHARD) | (sf.col("role") == NAMED))


def passed(matched: DataFrame, offsets: int, even: DataFrame | None = None) -> PassedTimes:
    """Return when H had passed the blocks of offsets that sound records are in.

    Args:
        matched: as ``match`` gives it.
        offsets: how many were read, which says how large a block is.
        even: blocks of sound records beside those, as ``blocks_of`` gives them.
    """
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
    """Return the verdicts that are certain once all records of an id are known."""
    is_certain = ~sf.col("verdict").isin(LINE, COUNT) & (sf.col("when") == CERTAIN)
    return judged.where(is_certain).unionByName(decide_by_ids(judged, known, rules))


def named(decided: DataFrame, cut: Cut, rules: Rules) -> DataFrame:
    """Return ``FINDING`` and ``verdict`` of what was found or not judged: names, not hashes."""
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
