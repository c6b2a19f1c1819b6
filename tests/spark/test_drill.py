"""Every defect that a drill injects is found at its place, and nothing is invented."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from connectors.spark.audit import verdicts
from delay_devtools.drill.options import DrillOptions
from delay_devtools.drill.run import KINDS, judged, prepared


def drilled(spark: SparkSession, options: DrillOptions) -> None:
    said: list[str] = []
    with prepared(options, spark, said.append) as drill:
        verdict = judged(drill, spark, said.append)
        folder = drill.folder
    short = {kind: n for kind, n in verdict.injected.items() if verdict.found.get(kind, 0) < n}
    assert (short, verdict.missed, verdict.inventions) == ({}, [], [])
    assert verdict.is_good
    assert sum(verdict.injected.values()) == options.defects
    assert verdict.records >= options.records
    assert verdict.seconds.keys() == {"archive", "disks", *(["follow"] * options.follow)}
    found = {finding[1] for one in drill.defects for finding in one.findings}
    # A flood takes ten thousand outputs: tests/unit/test_spark_judge.py.
    assert found >= {*verdicts.KINDS} - {verdicts.FLOODED}
    assert not folder.exists()


@pytest.mark.timeout(600)
def test_a_small_drill_finds_one_defect_of_each_kind(spark: SparkSession) -> None:
    assert len(KINDS) >= 60
    drilled(spark, DrillOptions(1_000, len(KINDS), follow=True))


@pytest.mark.night
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_drill_finds_three_hundred_defects_also_when_it_follows(
    spark: SparkSession, seed: int
) -> None:
    drilled(spark, DrillOptions(20_000, 300, seed, follow=True))
