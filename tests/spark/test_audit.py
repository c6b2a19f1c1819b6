"""The batch audit: every injected defect is found with its offset, and nothing is invented."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connectors.spark.audit import AuditOptions, AuditResult, audit
from connectors.spark.judge import KINDS
from delayservice.dev.cluster import EmbeddedCluster
from tests.spark.made_defects import LATE_MS, PARTITIONS, Defects, Found, inject
from tests.spark.made_history import MadeHistory


@pytest.fixture(scope="module")
def defects(cluster: EmbeddedCluster) -> Iterator[Defects]:
    with MadeHistory(cluster.bootstrap, PARTITIONS) as history:
        yield inject(history)


def options(defects: Defects, out: Path, **more: object) -> AuditOptions:
    h = defects.history
    return AuditOptions(
        client=h.client,
        out=str(out),
        checkpoint=h.checkpoint,
        dead_letter=h.dead_letter,
        outcomes=h.outcomes,
        late_ms=LATE_MS,
        **more,  # type: ignore[arg-type]  # a test's own
    )


def found_in(spark: SparkSession, result: AuditResult) -> set[Found]:
    rows = spark.read.parquet(result.findings_path).collect()
    return {(row["kind"], row["partition"], row["offset"]) for row in rows}


@pytest.fixture(scope="module")
def result(
    spark: SparkSession, defects: Defects, tmp_path_factory: pytest.TempPathFactory
) -> AuditResult:
    out = tmp_path_factory.mktemp("audit")
    return audit(spark, options(defects, out, topic=defects.history.audit))


@pytest.fixture(scope="module")
def found(spark: SparkSession, result: AuditResult) -> set[Found]:
    return found_in(spark, result)


@pytest.mark.parametrize("kind", KINDS)
def test_every_defect_is_found_with_its_offset_and_none_is_invented(
    kind: str, found: set[Found], defects: Defects
) -> None:
    injected = {one for one in defects.injected if one[0] == kind}
    assert injected
    assert {one for one in found if one[0] == kind} == injected
