"""What is a finding, what is repaired, and in which pieces; on a few rows, without any topic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from connectors.spark.reconcile import copies as replicas
from connectors.spark.reconcile import slots as reconcile_slots
from connectors.spark.reconcile.copies import UNREADABLE, Live
from connectors.spark.reconcile.digests import parse_keys
from connectors.spark.reconcile.plan import Step
from connectors.spark.reconcile.slots import (
    FINDING,
    LOGGED,
    WRONG,
    plan_steps,
    ranges_of,
    record_findings,
    slot_findings,
    told_in,
)
from delayservice.core.digest import HOUR_MS, SLOT_MS
from delayservice.core.repair import Command, Detail, Report

LOG_START, BELOW = 10, 100
TOLD = "node string, topic string, partition int, key_ms bigint, offset bigint, payload_hash bigint"


def shards(spark: SparkSession, log_start: int = LOG_START) -> DataFrame:
    columns = "topic string, partition int, below bigint, log_start bigint"
    return spark.createDataFrame([("any", 0, BELOW, log_start)], columns)


def held(node: str, *offsets: int) -> list[tuple[object, ...]]:
    return [(node, "any", 0, HOUR_MS + offset, offset, offset) for offset in offsets]


def finding(kind: str, slot_ms: int, offset: int | None = None) -> tuple[object, ...]:
    key_ms = None if offset is None else slot_ms
    return (kind, "n1", "any", 0, slot_ms, slot_ms + SLOT_MS, offset, key_ms, "why")


def steps_of(
    spark: SparkSession,
    found: Sequence[tuple[object, ...]],
    damaged: Sequence[tuple[object, ...]] = (),
) -> list[Step]:
    return plan_steps(
        spark.createDataFrame(found, FINDING),
        spark.createDataFrame([], LOGGED),
        spark.createDataFrame(damaged, UNREADABLE),
        shards(spark),
    )


def test_only_what_the_log_can_judge_is_found_and_repaired(spark: SparkSession) -> None:
    """Of n1 and n2 the log knows all that it can; n3 lacks a record, and n4 does not answer."""
    logged = spark.createDataFrame(
        [("any", 0, HOUR_MS + n, n, n, n, HOUR_MS) for n in (10, 11)], LOGGED
    )
    told = spark.createDataFrame(
        [*held("n2", 3, 10, 11), *held("n3", 3, 10), *held("n1", 3, 4)], TOLD
    )
    wrong = spark.createDataFrame(
        [(node, "any", 0, HOUR_MS, count, 2) for node, count in (("n2", 3), ("n3", 2), ("n4", 3))],
        WRONG,
    )
    silent = spark.createDataFrame(
        [("n4", "any", 0, HOUR_MS, HOUR_MS + SLOT_MS, None, None, "silent")], UNREADABLE
    )
    asked = wrong.where("node != 'n4'")
    theirs = told_in(asked, told, shards(spark).select("topic", "partition", "log_start"))
    assert {(r["node"], r["offset"]) for r in theirs.where("not is_judged").collect()} == {
        ("n2", 3),
        ("n3", 3),
    }
    records = record_findings(asked, logged, theirs)
    found = records.union(slot_findings(wrong, records, theirs, silent))
    assert {(row["kind"], row["node"], row["offset"]) for row in found.collect()} == {
        ("missing", "n3", 11),
        ("extra", "n4", None),
    }
    (step,) = plan_steps(found, logged, spark.createDataFrame([], UNREADABLE), shards(spark))
    assert (step.node, step.why, step.first_offset) == ("n3", "1 missing", 10)


def test_a_slot_that_nobody_can_judge_whole_is_no_step(spark: SparkSession) -> None:
    whole = [finding("extra", HOUR_MS), finding("different", 3 * HOUR_MS)]
    assert steps_of(spark, whole) == []
    steps = steps_of(spark, [finding("missing", HOUR_MS), finding("extra", 3 * HOUR_MS, 20)])
    assert [step.why for step in steps] == ["1 missing", "1 extra"]
    young = plan_steps(
        spark.createDataFrame(whole, FINDING),
        spark.createDataFrame([], LOGGED),
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


class _Answering:
    """Nodes without any records: every range is told at once."""

    def __init__(self) -> None:
        self.asked: list[Command] = []

    def ask(self, commands: Sequence[Command], timeout_s: float) -> Iterator[Report | Detail]:
        assert timeout_s > 0
        self.asked += commands
        for one in commands:
            yield Report(
                plan=one.plan,
                step=one.step,
                node=one.node,
                status="done",
                detail="",
                frames=0,
                at_ms=0,
            )


def test_nodes_are_asked_about_so_many_ranges_and_the_others_are_not_known(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(replicas, "RANGES_MAX", 2)
    slots = [2 * hour * HOUR_MS + part for hour in range(1, 6) for part in (0, 10 * SLOT_MS)]
    wrong = spark.createDataFrame([("n1", "any", 0, slot, 1, 2) for slot in slots], WRONG)
    rows = parse_keys(spark.createDataFrame([], "key binary, value binary, offset bigint"))
    desk = _Answering()
    live = Live(spark, rows, [], desk, str(tmp_path / "details"), 5.0)
    told, unanswered = live.records(ranges_of(wrong))
    assert told.isEmpty()
    asked = [(one.start_ms, one.stop_ms) for one in desk.asked]
    hours = [2 * hour * HOUR_MS for hour in range(1, 6)]
    assert asked == [(hour_ms, hour_ms + 11 * SLOT_MS) for hour_ms in hours[:2]]
    left = unanswered.orderBy("slot_start_ms").collect()
    assert [row["slot_start_ms"] for row in left] == hours[2:]
    live.close()
