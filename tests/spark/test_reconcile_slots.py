"""What is a finding, what is repaired, and in which pieces; on a few rows, without any topic."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pyspark.sql import DataFrame, SparkSession

from connectors.spark.reconcile import slots as reconcile_slots
from connectors.spark.reconcile.compare import COPIES, FINDING, HELD, LOGGED, compare
from connectors.spark.reconcile.details import UNREADABLE, Details, Range
from connectors.spark.reconcile.repair_plan import RepairStep
from connectors.spark.reconcile.slots import WRONG, plan_steps, ranges_of, slot_findings
from delayservice.replicas.digest import HOUR_MS, SLOT_MS

LOG_START, BELOW = 10, 100
PLACES = "node string, topic string, partition int, slot_start_ms bigint"
SLOTTED = f"{LOGGED}, slot_start_ms bigint"


def shards(spark: SparkSession, log_start: int = LOG_START) -> DataFrame:
    columns = "topic string, partition int, topic_id string, below bigint, log_start bigint"
    return spark.createDataFrame([("any", 0, "id", BELOW, log_start)], columns)


def held(node: str, *offsets: int) -> list[tuple[object, ...]]:
    return [(node, "any", 0, HOUR_MS + offset, offset, offset) for offset in offsets]


def finding(kind: str, slot_ms: int, offset: int | None = None) -> tuple[object, ...]:
    key_ms = None if offset is None else slot_ms
    return (kind, "n1", "any", 0, slot_ms, slot_ms + SLOT_MS, offset, key_ms, "why")


def steps_of(
    spark: SparkSession,
    found: Sequence[tuple[object, ...]],
    damaged: Sequence[tuple[object, ...]] = (),
) -> list[RepairStep]:
    return plan_steps(
        spark.createDataFrame(found, FINDING),
        spark.createDataFrame([], SLOTTED),
        spark.createDataFrame(damaged, UNREADABLE),
        shards(spark),
    )


def test_only_what_the_log_can_judge_is_found_and_repaired(spark: SparkSession) -> None:
    """Of n1 and n2 the log knows all that it can; n3 lacks a record, and n4 does not answer."""
    logged = spark.createDataFrame(
        [("any", 0, HOUR_MS + n, n, n, HOUR_MS) for n in (10, 11)], SLOTTED
    )
    told = spark.createDataFrame(
        [*held("n2", 3, 10, 11), *held("n3", 3, 10), *held("n1", 3, 4)], HELD
    )
    wrong = spark.createDataFrame(
        [(node, "any", 0, HOUR_MS, count, 2) for node, count in (("n2", 3), ("n3", 2), ("n4", 3))],
        WRONG,
    )
    silent = spark.createDataFrame(
        [("n4", "any", 0, HOUR_MS, HOUR_MS + SLOT_MS, None, None, "silent")], UNREADABLE
    )
    starts = shards(spark).select("topic", "partition", "log_start")
    asked = wrong.where("node != 'n4'").join(starts, ["topic", "partition"])
    records = compare(told, logged, asked.drop("count", "log_count"))
    below = spark.createDataFrame([("n2", "any", 0, HOUR_MS)], PLACES)
    found = records.union(slot_findings(wrong, records, below, silent))
    assert {(row["kind"], row["node"], row["offset"]) for row in found.collect()} == {
        ("missing", "n3", 11),
        ("extra", "n4", None),
    }
    (step,) = plan_steps(found, logged, spark.createDataFrame([], UNREADABLE), shards(spark))
    assert (step.node, step.topic_id, step.why, step.first_offset) == ("n3", "id", "1 missing", 10)


def test_whole_copies_are_held_against_the_log_as_a_library(spark: SparkSession) -> None:
    """Of n1 all is right, n2 has nothing at all, n3 one record too many and another content."""
    logged = spark.createDataFrame([("any", 0, HOUR_MS + n, n, n) for n in (10, 11)], LOGGED)
    told = [*held("n1", 3, 10, 11), *held("n3", 10, 12), ("n3", "any", 0, HOUR_MS + 11, 11, 7)]
    copies = [(node, "any", 0, LOG_START) for node in ("n1", "n2", "n3")]
    found = compare(
        spark.createDataFrame(told, HELD), logged, spark.createDataFrame(copies, COPIES)
    )
    assert {(row["kind"], row["node"], row["offset"]) for row in found.collect()} == {
        ("missing", "n2", 10),
        ("missing", "n2", 11),
        ("different", "n3", 11),
        ("extra", "n3", 12),
    }
    (row,) = found.where("kind = 'different'").collect()
    assert (row["slot_start_ms"], row["slot_stop_ms"]) == (HOUR_MS, HOUR_MS + SLOT_MS)
    assert found.schema == spark.createDataFrame([], FINDING).schema


def test_a_slot_that_nobody_can_judge_whole_is_no_step(spark: SparkSession) -> None:
    whole = [finding("extra", HOUR_MS), finding("different", 3 * HOUR_MS)]
    assert steps_of(spark, whole) == []
    steps = steps_of(spark, [finding("missing", HOUR_MS), finding("extra", 3 * HOUR_MS, 20)])
    assert [step.why for step in steps] == ["1 missing", "1 extra"]
    young = plan_steps(
        spark.createDataFrame(whole, FINDING),
        spark.createDataFrame([], SLOTTED),
        spark.createDataFrame([], UNREADABLE),
        shards(spark, log_start=0),
    )
    assert [step.why for step in young] == ["1 extra", "1 different"]


def test_no_step_is_longer_than_an_hour(spark: SparkSession) -> None:
    slots = [finding("missing", HOUR_MS + n * SLOT_MS, n) for n in range(30, 90)]
    steps = steps_of(spark, slots)
    half_ms = HOUR_MS // 2
    assert [(step.start_ms, step.stop_ms, step.why) for step in steps] == [
        (HOUR_MS + half_ms, 2 * HOUR_MS, "30 missing"),
        (2 * HOUR_MS, 2 * HOUR_MS + half_ms, "30 missing"),
    ]
    broken = ("n1", "any", 0, HOUR_MS + half_ms, 4 * HOUR_MS, 5, 9, "crc")
    pieces = steps_of(spark, [], [broken])
    assert [(step.start_ms, step.stop_ms) for step in pieces] == [
        (HOUR_MS + half_ms, 2 * HOUR_MS),
        (2 * HOUR_MS, 3 * HOUR_MS),
        (3 * HOUR_MS, 4 * HOUR_MS),
    ]
    assert {(step.first_offset, step.stop_offset, step.why) for step in pieces} == {
        (5, 9, "1 damaged")
    }


def test_of_too_many_steps_one_more_than_a_plan_has_is_told(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile_slots, "STEPS_MAX", 2)
    slots = [finding("missing", hour * HOUR_MS, hour) for hour in range(1, 6)]
    assert [step.start_ms // HOUR_MS for step in steps_of(spark, slots)] == [1, 2, 3]


class _Asked(Details):
    """Nodes without any records that answer at once, but for one range."""

    asked: Sequence[Range] = ()

    def ask(self, ranges: Sequence[Range]) -> tuple[DataFrame, list[tuple[Range, str]]]:
        self.asked = ranges
        return self.spark.createDataFrame([], f"{HELD}, mark bigint"), [(ranges[0], "busy")]


def test_of_too_many_ranges_the_wrong_ones_are_asked_for_and_the_others_are_not_known(
    spark: SparkSession,
) -> None:
    hours = [2 * hour * HOUR_MS for hour in range(1, 6)]
    slots = [
        ("n1", "any", 0, start + part, start >= hours[3])
        for start in hours
        for part in (0, 10 * SLOT_MS)
    ]
    ranges = ranges_of(spark.createDataFrame(slots, f"{PLACES}, is_wrong boolean"))
    details = _Asked(spark, {"bootstrap.servers": "localhost:1"}, "repairs", 1.0, ranges_max=3)
    told, unanswered = details.of(ranges)
    assert told.isEmpty()
    asked = [(one.start_ms, one.stop_ms) for one in details.asked]
    assert asked == [(start, start + 11 * SLOT_MS) for start in [*hours[3:], hours[0]]]
    left = {(row["slot_start_ms"], row["why"]) for row in unanswered.collect()}
    not_asked = "the node was not asked for details"
    assert left == {(hours[3], "busy"), *((start, not_asked) for start in hours[1:3])}
