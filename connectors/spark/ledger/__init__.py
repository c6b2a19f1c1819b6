"""Derives the ledger from the logs: each source record, and the outputs that settle it."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from connectors.spark.common.cut import Cut
from connectors.spark.ledger.native import (
    classified_deliveries,
    classified_outcomes,
    classified_sources,
)
from connectors.spark.ledger.rows import LEDGER, Ledger
from connectors.spark.ledger.unread import ledger_of

__all__ = ["LEDGER", "ledger"]


def ledger(
    sources: DataFrame, outputs: DataFrame, cut: Cut, secrets: Sequence[bytes] = ()
) -> DataFrame:
    """Return the ledger of records at a cut.

    Args:
        sources: records of the delay topics: ``topic``, ``partition``, ``offset``,
            ``timestamp_ms``, ``key``, ``value`` and ``headers`` as Spark's Kafka source has them
            (``topics.ROW_SCHEMA``), and ``value_hash`` where only the hash of a value was kept. Any
            table with these columns will do. It is read twice: persist it if that costs.
        outputs: records of the targets, the dead-letter topic and the outcome topic, with the same
            columns.
        cut: cursors, contracts and ends.
        secrets: the cluster's secrets, to detect forged copies; empty: copies count as genuine.

    Returns:
        Rows of ``LEDGER``.
    """
    reading = Ledger.of(cut, secrets)
    is_outcome = sf.col("topic") == cut.outcomes
    deliveries = classified_deliveries(outputs.where(~is_outcome), reading)
    outcomes = classified_outcomes(outputs.where(is_outcome), reading)
    of_sources = ledger_of(classified_sources(sources, reading), reading, of_sources=True)
    return of_sources.unionByName(
        ledger_of(deliveries.unionByName(outcomes), reading, of_sources=False)
    )
