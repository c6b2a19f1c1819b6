"""Every defect of a copy is found with its offset, and nothing is invented."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from connectors.spark.reconcile.digests import Expected
from connectors.spark.reconcile.options import ReconcileOptions, ReconcileResult
from connectors.spark.reconcile.repair_plan import Plan, RepairStep
from connectors.spark.reconcile.run import reconcile
from delay_devtools.cluster import EmbeddedCluster
from delayservice.engine.cursor import NO_MARK, Cursor, Frame
from delayservice.replicas.digest import HOUR_MS
from delayservice.replicas.digest_rows import Damage
from tests.conftest import MakeTopic
from tests.spark.copies_world import (
    RECORDS,
    World,
    spoiled,
    unmarked,
    with_other_value,
    without,
)

CUT_BEFORE = -1
"""Some checkpoint before that which the others are compared at."""


AGED = 30
"""Records below this offset were written long ago, and are settled: no log is read for them."""


@pytest.fixture
def world(cluster: EmbeddedCluster, make_topic: MakeTopic) -> World:
    return World(cluster.bootstrap, make_topic)


def options(world: World, out: Path, **more: object) -> ReconcileOptions:
    return ReconcileOptions(
        client=world.client,
        out=str(out),
        checkpoint=world.checkpoint,
        digests=world.digests,
        repairs=world.repairs,
        min_partitions=2,
        answer_timeout_s=20,
        **more,  # type: ignore[arg-type] # fields of the options
    )


def found(spark: SparkSession, result: ReconcileResult) -> set[tuple[object, ...]]:
    """``(kind, node, partition, offset)`` of every finding."""
    rows = spark.read.parquet(result.paths["findings"]).collect()
    places = [(row["kind"], row["node"], row["partition"], row["offset"]) for row in rows]
    assert len(set(places)) == len(places)
    return set(places)


def hour_of(key_ms: int) -> int:
    return key_ms // HOUR_MS * HOUR_MS


def test_copies_on_disks_are_held_against_the_log(
    spark: SparkSession, cluster: EmbeddedCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """A right wheel, one with an altered record, and RocksDB that does not open; the drill has the
    other defects.
    """
    world = World(cluster.bootstrap, make_topic, aged=AGED)
    shapes = [world.shape(partition) for partition in range(2)]
    named = next(f[1] for f in shapes[1][0] if f[2] == NO_MARK and f[1] % 10 == 0)
    folders = {node: str(tmp_path / node) for node in ("n1", "n3", "n4")}
    for partition in range(2):
        world.keep(tmp_path / "n1", partition, shapes[partition])
    world.keep(tmp_path / "n3", 0, shapes[0])
    world.keep(tmp_path / "n3", 1, spoiled(shapes[1], with_other_value(named)))
    broken = world.keep(tmp_path / "n4", 0, shapes[0], "rocksdb")
    for table in Path(broken.path).glob("db/*.sst"):
        table.write_bytes(b"garbage")
    result = reconcile(spark, options(world, tmp_path / "out", folders=folders))
    assert found(spark, result) == {
        ("different", "n3", 1, named),
        ("silent", "n4", 0, None),
        ("silent", "n4", 1, None),
        ("damaged", "n4", -1, None),  # of which shards is not known
    }
    pending = sum(len(world.pending(partition)) for partition in range(2))
    assert (result.counts.records, result.counts.pending) == (pending, pending)
    assert result.counts.log_offsets == RECORDS - AGED  # of the partition where copies differ
    plan = msgspec.json.decode((tmp_path / "out" / "plan.json").read_bytes(), type=Plan)
    assert plan == result.plan
    assert [(step.node, step.partition, step.why) for step in plan.steps] == [
        ("n3", 1, "1 different")
    ]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["findings"]["different"] == 1
    assert not (tmp_path / "out" / "work").exists()
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Copies differ" in page
    assert "By the hour in which records are due" in page
    assert "http" not in page


def test_a_copy_without_another_is_compared_with_the_log_only_if_that_is_asked_for(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    world.keep(tmp_path / "n1", 0, spoiled(world.shape(0), without(5)))
    world.keep(tmp_path / "n1", 1, world.shape(1))
    folders = {"n1": str(tmp_path / "n1")}
    result = reconcile(spark, options(world, tmp_path / "out", folders=folders))
    assert (result.findings, result.status, result.is_clean) == ({}, 4, False)
    assert (result.counts.uncompared, result.counts.records) == (2, 0)
    assert any("2 shards have no second copy" in note for note in result.notes)
    assert "Not all copies were compared" in (tmp_path / "out" / "report.html").read_text()
    deep = reconcile(spark, options(world, tmp_path / "out", folders=folders, deep=True))
    assert found(spark, deep) == {("missing", "n1", 0, 5)}
    assert deep.counts.uncompared == 0
    assert deep.counts.records == deep.counts.pending > 0


def test_records_below_the_log_start_are_neither_extra_nor_repaired(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    """One node was built anew after retention; the other has the last copy of what is gone."""
    first, lost = 50, 61
    shape = world.shape(0)
    folders = {node: str(tmp_path / node) for node in ("n1", "n2", "n3")}
    world.keep(tmp_path / "n1", 0, spoiled(shape, without(*range(first))))
    world.keep(tmp_path / "n2", 0, shape)
    world.keep(tmp_path / "n3", 0, spoiled(shape, without(lost)))
    for node in folders:
        world.keep(tmp_path / node, 1, world.shape(1))
    world.trim(0, first)
    result = reconcile(spark, options(world, tmp_path / "out", folders=folders))
    assert found(spark, result) == {("missing", "n3", 0, lost)}
    assert [(step.node, step.why) for step in result.plan.steps] == [("n3", "1 missing")]
    old = [frame for frame in world.pending(0) if frame[1] < first]
    assert result.counts.unjudged == 2 * len(old) > 0
    assert any("below the start" in note for note in result.notes)


def test_running_nodes_are_compared_by_digests_and_asked_for_details(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    right = {partition: world.shape(partition)[0] for partition in range(2)}
    cancelled = next(f[1] for f in right[0] if f[2] != NO_MARK)
    spoils = [without(3), with_other_value(7), unmarked(cancelled)]
    wrong, _ = spoiled((right[0], 300), *spoils)
    broken = world.pending(1)[10]
    hour = (hour_of(broken[0]), hour_of(broken[0]) + HOUR_MS)
    world.publish("n1", 0, right[0])
    world.publish("n1", 1, right[1])
    world.publish("n2", 0, wrong)
    world.publish("n2", 1, right[1], cut_ms=world.now_ms - 3_600_000, cut=CUT_BEFORE)
    world.publish("n3", 1, without(broken[1])(right[1]), damaged=[Damage(*hour, 1, 9, "crc")])
    world.publish("n3", 0, right[0], life="old")
    world.publish("n3", 0, without(8)(right[0]), life="new")
    copies = {("n2", 0): wrong, ("n3", 0): without(8)(right[0])}
    expected = Expected(nodes=("n1", "n2", "n3", "n4"), behind_ms=600_000)
    with world.answering(copies) as heard:
        result = reconcile(spark, options(world, tmp_path / "out", expected=expected))
    assert found(spark, result) == {
        ("missing", "n2", 0, 3),
        ("different", "n2", 0, 7),
        ("extra", "n2", 0, cancelled),
        ("missing", "n3", 0, 8),
        ("behind", "n2", 1, None),
        ("damaged", "n3", 1, None),
        ("silent", "n4", 0, None),
        ("silent", "n4", 1, None),
    }
    assert {(command.node, command.partition) for command in heard} == set(copies)
    assert RepairStep(
        node="n3", topic=world.delay, partition=1, topic_id=world.topic_id, why="1 damaged"
    ) in list(result.plan.steps)


def test_of_an_hour_that_is_known_in_part_the_known_part_is_compared(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    """Digests of one shard begin within an hour; an hour of the other is too large to tell."""
    begun, large = (world.shape(partition)[0] for partition in range(2))
    first_ms = hour_of(begun[0][0])
    from_ms = first_ms + HOUR_MS // 2

    def plain(frames: list[Frame]) -> list[Frame]:
        return [f for f in frames if f[2] == NO_MARK and f[1] % 10 and hour_of(f[0]) == first_ms]

    passed, late = plain(begun)[0][1], next(f[1] for f in plain(begun) if f[0] >= from_ms)
    early, *_, untold = [f[1] for f in plain(large)]
    world.told_max = {1: 30}
    wrong = {
        ("n2", 0): without(passed, late)(begun),
        ("n2", 1): without(early, untold)(large),
        ("n3", 1): without(untold)(large),
    }
    for node in ("n1", "n2", "n3"):
        world.publish(node, 0, wrong.get((node, 0), begun), from_ms=from_ms)
        world.publish(node, 1, wrong.get((node, 1), large))
    with world.answering(wrong) as heard:
        result = reconcile(spark, options(world, tmp_path / "out"))
    assert found(spark, result) == {
        ("missing", "n2", 0, late),
        ("missing", "n2", 1, early),
        ("missing", "n3", 1, None),
    }
    assert {command.hour_ms for command in heard} == {first_ms}
    (row,) = [row for row in result.sample if row["node"] == "n3"]
    assert (row["start_ms"], row["stop_ms"]) == (first_ms, first_ms + HOUR_MS)
    assert "the first 10,000 of the hour, which are right" in row["detail"]


def test_copies_that_all_stand_still_are_behind_unless_they_report_meanwhile(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    right = [world.shape(partition)[0] for partition in range(2)]
    for partition, frames in enumerate(right):
        for node in ("n1", "n2"):
            world.publish(node, partition, frames, cut_ms=world.now_ms - 3_600_000)
    world.commit_all(Cursor((world.now_ms, 8), RECORDS))

    def say(what: str) -> None:
        if what == "comparing hours":
            for node in ("n1", "n2"):
                world.publish(node, 1, right[1])

    result = reconcile(spark, options(world, tmp_path / "out"), say)
    assert found(spark, result) == {("behind", "n1", 0, None), ("behind", "n2", 0, None)}
    assert "the slice goes on" in result.sample[0]["detail"]
    assert (result.counts.records, result.counts.pending > 0) == (0, True)


def test_nodes_that_do_not_answer_leave_a_finding_of_the_hour(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    right = world.shape(0)[0]
    world.publish("n1", 0, right)
    world.publish("n2", 0, without(3)(right))
    world.publish("n1", 1, world.shape(1)[0])
    world.publish("n2", 1, world.shape(1)[0], lost_hours=1)
    result = reconcile(spark, options(world, tmp_path / "out", details=False))
    assert found(spark, result) == {("missing", "n2", 0, None), ("behind", "n2", 1, None)}
    (row,) = [row for row in result.sample if row["kind"] == "missing"]
    (key_ms,) = [frame[0] for frame in right if frame[1] == 3]
    assert (row["start_ms"], row["stop_ms"]) == (hour_of(key_ms), hour_of(key_ms) + HOUR_MS)
    assert "was not asked which they are" in row["detail"]
