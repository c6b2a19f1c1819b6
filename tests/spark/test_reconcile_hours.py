"""What is a finding and what is repaired; on a few rows, without any topic."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from connectors.spark.reconcile.compare import (
    FINDING,
    PLACE,
    SUMS,
    TOLD,
    compare,
    frame_of,
    hour_findings,
    hours_to_ask,
    outside,
    suspects,
)
from connectors.spark.reconcile.digest_rows import hours_at, newest_cuts, parse_keys
from connectors.spark.reconcile.digests import Comparison
from delayservice.replicas.digest import HOUR_MS, HourSum
from delayservice.replicas.digest_rows import (
    CopyId,
    DigestRow,
    cut_row,
    hour_row,
    retired_row,
)
from tests.unit.test_spark_reconcile_choose import a_cut

LOG_START = 10
COPY = "node string, topic string, partition int"
HELD = f"{COPY}, key_ms bigint, offset bigint, payload_hash bigint"
WRONG = f"{COPY}, hour_ms bigint, count bigint, log_count bigint"


def held(node: str, *offsets: int) -> list[tuple[object, ...]]:
    return [(node, "any", 0, HOUR_MS + offset, offset, offset) for offset in offsets]


def test_a_digest_that_is_wrong_where_its_records_are_right_is_found(spark: SparkSession) -> None:
    wrong = spark.createDataFrame([("n1", "any", 0, HOUR_MS, 2, 2)], WRONG)
    told = frame_of(spark, [("n1", "any", 0, HOUR_MS, 2 * HOUR_MS, None)], TOLD)
    nothing = frame_of(spark, [], FINDING)
    unjudged = wrong.where("false")
    (row,) = hour_findings(wrong, nothing, unjudged, told).collect()
    assert (row["kind"], row["start_ms"], row["stop_ms"]) == ("different", HOUR_MS, 2 * HOUR_MS)
    assert "read its disk again" in row["detail"]


def test_whole_copies_are_held_against_the_log_as_a_library(spark: SparkSession) -> None:
    """Of n1 all is right, n2 has nothing at all, n3 one record too many and another content."""
    logged = spark.createDataFrame(held("log", 10, 11), HELD).drop("node")
    told = [*held("n1", 3, 10, 11), *held("n3", 10, 12), ("n3", "any", 0, HOUR_MS + 11, 11, 7)]
    copies = [(node, "any", 0, LOG_START) for node in ("n1", "n2", "n3")]
    whole = spark.createDataFrame(copies, f"{COPY}, log_start bigint")
    found = compare(spark.createDataFrame(told, HELD), logged, whole)
    assert {(row["kind"], row["node"], row["offset"]) for row in found.collect()} == {
        ("missing", "n2", 10),
        ("missing", "n2", 11),
        ("different", "n3", 11),
        ("extra", "n3", 12),
    }
    (row,) = found.where("kind = 'different'").collect()
    assert (row["start_ms"], row["stop_ms"]) == (HOUR_MS, 2 * HOUR_MS)
    assert found.schema == frame_of(spark, [], FINDING).schema


def test_hours_that_differ_from_the_log_are_asked_for_unless_they_are_unreadable(
    spark: SparkSession,
) -> None:
    """Of n1 and n2; in hour 4, which neither has, the log has a record."""
    right = {1: (2, 7), 2: (1, 5), 3: (1, -1)}
    wrong = {**right, 2: (1, 6)}
    told = [
        (node, "any", 0, hour * HOUR_MS, *said)
        for node, hours in {"n1": right, "n2": wrong}.items()
        for hour, said in hours.items()
    ]
    sums = frame_of(spark, told, SUMS)
    copies = spark.createDataFrame([(node, "any", 0) for node in ("n1", "n2", "n3")], COPY)
    both = copies.where("node != 'n3'")
    assert [row["hour_ms"] for row in suspects(sums, both, every=False).collect()] == [2 * HOUR_MS]
    assert suspects(sums, copies, every=False).count() == 3  # n3 has none of them
    every = suspects(sums, both, every=True)
    assert every.count() == 3
    columns = "topic string, partition int, hour_ms bigint, record_id binary, frame_hash bigint"
    rows = [(1, None, 2**63 - 1), (1, None, 8 - 2**63), (2, None, 5), (3, b"a", -1), (4, None, 9)]
    logged = spark.createDataFrame(
        [("any", 0, row[0] * HOUR_MS, *row[1:]) for row in rows], columns
    )
    found = hours_to_ask(every, sums, logged, both, "frame_hash")
    assert {(r["node"], r["hour_ms"] // HOUR_MS, r["is_wrong"]) for r in found.collect()} == {
        ("n2", 2, True),
        ("n1", 3, False),
        ("n2", 3, False),
        ("n1", 4, True),
        ("n2", 4, True),
    }
    ranges = [("n1", "any", 0, 3 * HOUR_MS, 4 * HOUR_MS + 1)]
    left = outside(found, spark.createDataFrame(ranges, f"{COPY}, start_ms bigint, stop_ms bigint"))
    assert {row["node"] for row in left.select(*PLACE).collect()} == {"n2"}


def topic_of(spark: SparkSession, written: list[DigestRow]) -> DataFrame:
    rows = [(key, value, offset) for offset, (key, value) in enumerate(written)]
    return parse_keys(spark.createDataFrame(rows, "key binary, value binary, offset bigint"))


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
    one = Comparison("any", 0, nodes={node: a_cut(node, 7, 8) for node in ("n1", "n2")})
    hours = hours_at(topic_of(spark, written), [one])
    assert {
        (r["node"], r["hour_ms"] // HOUR_MS, r["count"], r["hash"]) for r in hours.collect()
    } == {
        ("n1", 1, 2, -1),
        ("n1", 2, 3, 6),
    }


def test_cuts_are_read_since_the_copy_was_last_retired(spark: SparkSession) -> None:
    written = [
        cut_row(a_cut("n1", 1, 0).cut),
        cut_row(a_cut("n2", 1, 0).cut),
        retired_row("n1", "any", 0),
        retired_row("n2", "any", 0),
        (b"c/n1/any/0", b"garbage"),
        cut_row(a_cut("n1", 2, 0).cut),
        cut_row(a_cut("n1", 3, 0).cut),
    ]
    found = newest_cuts(topic_of(spark, written))
    assert {(at.cut.node, at.cut.cut, at.row) for at in found} == {("n1", 2, 5), ("n1", 3, 6)}
