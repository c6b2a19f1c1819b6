"""What is a finding and what is repaired; on a few rows, without any topic."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from connectors.spark.reconcile.compare import (
    COPIES,
    FINDING,
    HELD,
    LOGGED,
    TOLD,
    WRONG,
    compare,
    hour_findings,
    plan_steps,
)
from connectors.spark.reconcile.digest_rows import hours_at, parse_keys, totals
from connectors.spark.reconcile.digests import Comparison, CutAt
from delayservice.replicas.digest import HOUR_MS, HourSum
from delayservice.replicas.digest_rows import CopyId, CutRow, DigestRow, hour_row

LOG_START = 10
HOURS = f"{LOGGED}, hour_ms bigint"


def starts(spark: SparkSession) -> DataFrame:
    columns = "topic string, partition int, log_start bigint"
    return spark.createDataFrame([("any", 0, LOG_START)], columns)


def held(node: str, *offsets: int) -> list[tuple[object, ...]]:
    return [(node, "any", 0, HOUR_MS + offset, offset, offset) for offset in offsets]


def test_only_what_the_log_can_judge_is_found(spark: SparkSession) -> None:
    """Of n1 and n2 the log knows all that it can; n3 lacks a record, n4 does not answer, and n5 is
    not asked.
    """
    logged = spark.createDataFrame(
        [("any", 0, HOUR_MS + n, n, n, HOUR_MS) for n in (10, 11)], HOURS
    )
    rows = spark.createDataFrame(
        [*held("n2", 3, 10, 11), *held("n3", 3, 10), *held("n1", 3, 4)], HELD
    )
    counts = {"n2": 3, "n3": 2, "n4": 3, "n5": 1}
    wrong = spark.createDataFrame(
        [(node, "any", 0, HOUR_MS, count, 2) for node, count in counts.items()], WRONG
    )
    told = spark.createDataFrame(
        [
            ("n2", "any", 0, HOUR_MS, 2 * HOUR_MS, None),
            ("n3", "any", 0, HOUR_MS, 2 * HOUR_MS, None),
            ("n4", "any", 0, HOUR_MS, 0, "it is busy"),
        ],
        TOLD,
    )
    scope = told.join(starts(spark), ["topic", "partition"]).drop("why")
    records = compare(rows, logged, scope)
    below = spark.createDataFrame(
        [("n2", "any", 0, HOUR_MS)], "node string, topic string, partition int, hour_ms bigint"
    )
    found = records.union(hour_findings(wrong, records, below, told))
    assert {(row["kind"], row["node"], row["offset"]) for row in found.collect()} == {
        ("missing", "n3", 11),
        ("extra", "n4", None),
        ("missing", "n5", None),
    }
    why = {row["node"]: row["detail"] for row in found.collect()}
    assert "it is busy" in why["n4"]
    assert "not asked" in why["n5"]


def test_what_a_node_has_not_told_of_an_hour_is_not_compared(spark: SparkSession) -> None:
    logged = spark.createDataFrame([("any", 0, HOUR_MS + n, n, n) for n in range(10, 20)], LOGGED)
    rows = spark.createDataFrame(held("n1", 10, 12, 13), HELD)
    told = spark.createDataFrame([("n1", "any", 0, HOUR_MS, HOUR_MS + 13, "more")], TOLD)
    scope = told.join(starts(spark), ["topic", "partition"]).drop("why")
    found = compare(rows, logged, scope)
    assert [(row["kind"], row["offset"]) for row in found.collect()] == [("missing", 11)]


def test_a_digest_that_is_wrong_where_its_records_are_right_is_found(spark: SparkSession) -> None:
    wrong = spark.createDataFrame([("n1", "any", 0, HOUR_MS, 2, 2)], WRONG)
    told = spark.createDataFrame([("n1", "any", 0, HOUR_MS, 2 * HOUR_MS, None)], TOLD)
    nothing = spark.createDataFrame([], FINDING)
    unjudged = wrong.where("false")
    (row,) = hour_findings(wrong, nothing, unjudged, told).collect()
    assert (row["kind"], row["start_ms"], row["stop_ms"]) == ("different", HOUR_MS, 2 * HOUR_MS)
    assert "read its disk again" in row["detail"]


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
    assert (row["start_ms"], row["stop_ms"]) == (HOUR_MS, 2 * HOUR_MS)
    assert found.schema == spark.createDataFrame([], FINDING).schema


def test_a_copy_with_findings_is_one_step(spark: SparkSession) -> None:
    found = [
        (kind, node, "any", 0, HOUR_MS, 2 * HOUR_MS, None, None, "why")
        for node, kinds in {
            "n1": ["missing", "missing", "extra"],
            "n2": ["behind", "silent"],
            "n3": ["damaged"],
        }.items()
        for kind in kinds
    ]
    ids = spark.createDataFrame([("any", 0, "id")], "topic string, partition int, topic_id string")
    steps = plan_steps(spark.createDataFrame(found, FINDING), ids)
    assert [(step.copy, step.topic_id, step.why) for step in steps] == [
        (("n1", "any", 0), "id", "2 missing, 1 extra"),
        (("n3", "any", 0), "id", "1 damaged"),
    ]


def test_hours_are_read_as_of_the_cut_and_of_its_life_only(spark: SparkSession) -> None:
    """Of n1 an older row of an hour, and one after the cut; of n2 rows that do not count."""

    def row(
        node: str, hour: int, told: tuple[int, int], life: str = "1", cut: int = 7
    ) -> DigestRow:
        return hour_row(CopyId(node, "any", "id", 0, life), cut, HourSum(hour * HOUR_MS, *told))

    written = [
        row("n1", 1, (9, 9)),
        row("n1", 1, (2, 2**64 - 1)),
        row("n1", 2, (3, 6)),
        row("n1", 3, (5, 5)),
        row("n1", 3, (0, 0)),  # a tombstone
        row("n2", 1, (1, 1), life="0"),
        row("n2", 2, (1, 1), cut=8),
        (b"h/n2/any/0/%d" % (3 * HOUR_MS), b"garbage"),
        row("n1", 2, (4, 4)),  # behind the cut row
    ]
    records = spark.createDataFrame(
        [(key, value, offset) for offset, (key, value) in enumerate(written)],
        "key binary, value binary, offset bigint",
    )
    one = Comparison("any", 0, nodes=["n1", "n2"])
    for node in one.nodes:
        cut = CutRow(
            **CopyId(node, "any", "id", 0, "1")._asdict(),
            cut=7,
            cut_ms=0,
            h=0,
            stored=0,
            from_ms=0,
            count=0,
            pending=0,
            k=(0, 0),
            hash="0",
            behind=False,
            role="replica",
        )
        one.rows.append(CutAt(8, cut))
    hours = hours_at(spark, parse_keys(records), [one])
    assert {
        (r["node"], r["hour_ms"] // HOUR_MS, r["count"], r["hash"]) for r in hours.collect()
    } == {
        ("n1", 1, 2, -1),
        ("n1", 2, 3, 6),
    }
    assert totals(hours) == {("n1", "any", 0): (2, 5, 5)}
