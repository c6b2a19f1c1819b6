"""Derives the ledger: a row for each source record, and for each output that settles one."""

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
    """Return the ledger: rows of source records and of the outputs that settle them, at a cut.

    Args:
        sources: records of the delay topics from any table, with the columns of
            ``topics.ROW_SCHEMA``, and ``value_hash`` where only the hash of a value was kept. They
            are read twice: persist them if reading is slow.
        outputs: records of the target topics, the dead-letter topic and the outcome topic, with the
            same columns as ``sources``.
        cut: offsets, cursors and contracts.
        secrets: cluster secrets, to detect forged requeued records; empty: all count as genuine.

    Returns:
        Rows with the columns of ``LEDGER``.
    """
    reading = Ledger.of(cut, secrets)
    is_outcome = sf.col("topic") == cut.outcomes
    deliveries = classified_deliveries(outputs.where(~is_outcome), reading)
    outcomes = classified_outcomes(outputs.where(is_outcome), reading)
    of_sources = ledger_of(classified_sources(sources, reading), reading, of_sources=True)
    return of_sources.unionByName(
        ledger_of(deliveries.unionByName(outcomes), reading, of_sources=False)
    )
