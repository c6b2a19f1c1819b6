"""Audits data frames: takes rows of the ledger (source records and outputs), returns findings.

Functions run on the session of their input and need no Kafka. ``engine`` stores the result of each;
``findings`` combines them for other callers.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from connectors.spark.audit.evidence import Evidence, Strictness, all_of, rules_of
from connectors.spark.audit.match import ODD, SOUND, UNMATCHED, family, match, unpaired
from connectors.spark.audit.row_judges import PassedTimes, judge_records
from connectors.spark.audit.sieve import BLOCK_BITS, sift
from connectors.spark.audit.verdicts import ABOUT, FOUND, UNJUDGED, with_ids
from connectors.spark.common.cut import Cut
from connectors.spark.ledger.facts import NAMED
from connectors.spark.ledger.rows import COLUMNS, NO_SHARD

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
        judged; their kind is the reason. A Spark job runs before this returns.
    """
    rules = rules_of(cut, all_of(cut) if evidence is None else evidence, strictness)
    sifted = sift(ledger.select("row.*"), rules)
    matched = match(sifted, rules)
    odd = unpaired(matched.where(sf.col("status").isin(ODD, UNMATCHED)))
    offsets = sum(span.end - span.start for span in cut.spans.values())
    known = passed(matched, offsets)
    judged = judge_records(odd.unionByName(apart(sifted)), rules, known, keeps=False)
    is_finding = sf.col("verdict") == FOUND
    return findings_of(judged).select("*", is_finding.alias("is_finding")).drop("verdict")


def apart(ledger: DataFrame) -> DataFrame:
    told = ledger.where((sf.col("shard") == NO_SHARD) | (sf.col("role") == NAMED))
    return told.select(*COLUMNS, family().alias("family"))


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


def findings_of(judged: DataFrame) -> DataFrame:
    """Return findings and unjudged records, columns ``FINDING`` and ``verdict``. One that is about
    no record is about its output.
    """
    told = judged.where(sf.col("verdict").isin(FOUND, UNJUDGED))
    return told.select(
        "kind",
        *(sf.coalesce(record, output).alias(record) for record, output in ABOUT.items()),
        *("source", "target", "target_partition", "target_offset", "due_ms", "at_ms", "detail"),
        "verdict",
    ).transform(with_ids)
