"""Every defect that a drill injects is found with its offset, and nothing is invented."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.drill.run import KINDS, DrillOptions, judged, prepared


def drilled(spark: SparkSession, options: DrillOptions) -> None:
    said: list[str] = []
    with prepared(options, spark, is_shown=False) as drill:
        verdict = judged(drill, spark, said.append)
        folder = drill.folder
    assert verdict.missed == ()
    assert verdict.inventions == ()
    assert verdict.is_good
    assert sum(verdict.injected.values()) == options.defects
    assert verdict.records >= options.records
    jobs = {"audit", "digests", "disks"} | ({"follow"} if options.cuts else set())
    assert verdict.seconds.keys() == jobs
    assert "auditing" in said
    assert not folder.exists()


@pytest.mark.night
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("checkpoint_partitions", "cuts"), [(0, 0), (1, 3)])
def test_a_small_drill_finds_one_defect_of_each_kind(
    spark: SparkSession, cluster: EmbeddedCluster, checkpoint_partitions: int, cuts: int
) -> None:
    """Where each slice has a partition of checkpoints; and where all share one, and an audit that
    follows judges as well.
    """
    small = DrillOptions(
        records=3_000,
        defects=len(KINDS),
        partitions=2,
        bootstrap=cluster.bootstrap,
        checkpoint_partitions=checkpoint_partitions,
        cuts=cuts,
    )
    drilled(spark, small)


@pytest.mark.night
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_drill_finds_three_hundred_defects(
    spark: SparkSession, cluster: EmbeddedCluster, seed: int
) -> None:
    drilled(spark, DrillOptions(50_000, 300, seed, cluster.bootstrap))
