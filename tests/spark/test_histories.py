"""All small histories judged together by Spark; ``tests/unit/test_spark_histories.py`` has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.history import SECRET
from tests.unit.spark_world import HERE, SPARK, SPARK_AT_ONCE, USUAL, Audit, Snapshot, World
from tests.unit.test_spark_histories import CASES, first_record_of, is_begun, made


@pytest.mark.parametrize(
    "engines",
    [pytest.param((SPARK_AT_ONCE,), marks=pytest.mark.quick), (SPARK, HERE), (HERE, SPARK)],
    ids=str,
)
def test_spark_gives_each_history_its_verdict(
    spark: SparkSession, tmp_path: Path, engines: Sequence[str]
) -> None:
    """At one cut, or from cut to cut, each engine on the state that the other one has left."""
    is_followed = SPARK_AT_ONCE not in engines
    worlds, names = list[World](), list[str]()
    for name, wanted in CASES.items():
        world = made(wanted, name, len(worlds))
        if is_followed and len(world.cuts) == 1:
            nothing = Snapshot(dict.fromkeys(world.logs, 0))
            world.cuts.insert(0, first_record_of(world) if is_begun(wanted) else nothing)
        is_usual = (world.rules, world.secrets, world.strictness) == ({}, (SECRET,), USUAL)
        if is_usual and (is_followed or len(world.cuts) == 1):
            worlds.append(world)
            names.append(name)
    audit = Audit(worlds, str(tmp_path), spark)
    steps = max(len(world.cuts) for world in worlds)
    for number in range(steps):
        # All end together: what one has settled is due in all of them.
        now = [world.cuts[max(0, number - steps + len(world.cuts))] for world in worlds]
        audit.step(now, engines[number % len(engines)])
    found = dict(zip(names, audit.found(), strict=True))
    assert len(found) > 75
    assert found == {name: CASES[name][2:] for name in names}
