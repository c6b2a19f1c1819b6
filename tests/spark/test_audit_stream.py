"""The streaming audit: what is not settled in time is found, and what is settled is forgotten."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from connectors.spark.audit import AuditOptions
from connectors.spark.audit.stream import StreamOptions, standing, start_audit
from delayservice.dev.cluster import EmbeddedCluster
from tests.spark.made_history import MadeHistory

BLOCK = 8_192
WAIT_S = 120.0


def await_true(query: StreamingQuery, condition: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    tick = threading.Event()
    while not condition():
        failed = query.exception()
        assert failed is None, failed
        assert time.monotonic() < deadline_s, f"{what}: {query.lastProgress}"
        tick.wait(0.2)


def findings(spark: SparkSession, out: Path) -> set[tuple[str, int]]:
    try:
        rows = spark.read.parquet(str(out / "findings")).collect()
    except AnalysisException:  # nothing was written yet
        return set()
    return {(row["kind"], row["offset"]) for row in rows}


def blocks_kept(query: StreamingQuery) -> int:
    """How many blocks the state holds; -1: nobody knows yet."""
    progress = query.lastProgress
    if progress is None or not progress["stateOperators"]:
        return -1
    return int(progress["stateOperators"][0]["numRowsTotal"])


def test_a_loss_and_a_duplicate_are_found_and_whole_blocks_are_forgotten(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    with MadeHistory(cluster.bootstrap) as history:
        h = history
        due_ms = h.now_ms - 300_000
        h.plain(2 * BLOCK)
        lost = h.source(due_ms)
        h.plain(BLOCK)
        doubled = h.source(due_ms)
        h.delivery(doubled, due_ms)
        h.delivery(doubled, due_ms)
        h.plain(BLOCK)
        h.settled(h.now_ms - 30_000)
        audited = AuditOptions(
            client=h.client,
            out=str(tmp_path),
            checkpoint=h.checkpoint,
            dead_letter=h.dead_letter,
            outcomes=h.outcomes,
        )
        options = StreamOptions(audited, grace_ms=2_000, trigger_ms=500, from_start=True)
        query = start_audit(spark, options)
        try:
            expected = {("lost", lost), ("duplicated", doubled)}
            await_true(query, lambda: findings(spark, tmp_path) == expected, "both are found")
            await_true(query, lambda: blocks_kept(query) == 2, "the other blocks are forgotten")
        finally:
            query.stop()
        h.delivery(lost, due_ms)
        h.plain(BLOCK)
        h.settled(h.now_ms - 30_000)
        query = start_audit(spark, replace(options, from_start=False))
        try:
            await_true(query, lambda: blocks_kept(query) == 1, "only the duplicate is left")
            rest = {("duplicated", doubled)}
            await_true(query, lambda: findings(spark, tmp_path) == rest, "and it is still found")
        finally:
            query.stop()
        assert standing(spark, audited) == {"duplicated": 1}
        assert standing(spark, replace(audited, out=str(tmp_path / "none"))) == {}
