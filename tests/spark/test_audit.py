"""The batch audit: what a result says, ranges, and topics that are not there; the drill has the
findings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from connectors.spark.audit import AuditOptions, AuditResult, OffsetRange, audit
from connectors.spark.common.log_times import first_times
from connectors.spark.common.topics import Span
from delay_devtools.cluster import EmbeddedCluster
from delayservice.base.errors import DelayServiceError, KafkaEdgeError
from delayservice.contract.names import DELAY_SETTLES
from tests.integration.bench import Reader
from tests.spark.audits import audit_options
from tests.spark.made_history import MadeHistory

PLAIN = 20


@dataclass
class Defects:
    """A history with a record that was lost, one that was early, and one that was requeued without
    its id; the places of the three, and of the early delivery.
    """

    made: MadeHistory
    lost: int
    early: int
    delivery: int
    copied: int

    def options(self, out: Path, **more: object) -> AuditOptions:
        return audit_options(self.made, out, **more)


@pytest.fixture(scope="module")
def defects(cluster: EmbeddedCluster) -> Iterator[Defects]:
    with MadeHistory(cluster.bootstrap) as h:
        due_ms = h.now_ms - 60_000
        h.plain(PLAIN)
        lost, early = h.record(due_ms), h.record(due_ms)
        delivery = h.delivery(due_ms - 7, early, due_ms)
        copied = h.record(due_ms, ("delay-id", b"a"))
        copy = h.requeue(h.now_ms, copied, due_ms, base=copied + 1)
        h.delivered(copy, due_ms, origin=f"{h.delay}:0:{copied}")
        h.write(h.target, h.now_ms, [("own", b"1")])
        h.settled(h.now_ms)
        yield Defects(h, lost, early, delivery, copied)


def found_in(spark: SparkSession, result: AuditResult) -> set[tuple[object, ...]]:
    rows = spark.read.parquet(result.findings_path).collect()
    return {(row["kind"], row["topic"], row["partition"], row["offset"]) for row in rows}


@pytest.fixture(scope="module")
def result(
    spark: SparkSession, defects: Defects, tmp_path_factory: pytest.TempPathFactory
) -> AuditResult:
    out = tmp_path_factory.mktemp("audit")
    return audit(spark, defects.options(out, topic=defects.made.audit))


def test_a_finding_says_where_the_output_is_and_when_it_was_due(
    spark: SparkSession, result: AuditResult, defects: Defects
) -> None:
    h = defects.made
    (early,) = spark.read.parquet(result.findings_path).where("kind = 'early'").collect()
    assert early["source"] == f"{h.delay}:0:{defects.early}"
    assert (early["target"], early["target_partition"]) == (h.target, 0)
    assert early["target_offset"] == defects.delivery
    assert early["detail"] == f"by {early['due_ms'] - early['at_ms']} ms" == "by 7 ms"


def test_sound_records_are_counted(result: AuditResult) -> None:
    counts = result.counts
    assert counts["sources"] == result.records == PLAIN + 4
    assert (counts["delivered"], counts["copied"], counts["ordinary"]) == (PLAIN + 2, 1, 1)
    assert not result.is_clean


def test_the_summary_is_a_file_and_the_last_record_of_the_topic(
    spark: SparkSession, result: AuditResult, defects: Defects
) -> None:
    with Reader(defects.made.client["bootstrap.servers"], [defects.made.audit]) as reader:
        said = [json.loads(seen.value or b"") for seen in reader.to_end()]
    summary = json.loads(Path(result.summary_path).read_text("utf-8"))
    assert summary == json.loads(json.dumps(result.to_json()))
    # A record must stay small, whatever the number of shards.
    assert said[-1].keys() == summary.keys() - {"cut", "judged"}
    assert said[-1].items() <= summary.items()
    told = {(one["finding"], one["topic"], one["partition"], one["offset"]) for one in said[:-1]}
    assert told == found_in(spark, result)
    assert {one["kind"] for one in said[:-1]} == {"finding"}


def test_a_range_is_judged_by_itself(spark: SparkSession, defects: Defects, tmp_path: Path) -> None:
    """And a requeued record beyond it settles what is in it, which is altered, and not lost."""
    delay = defects.made.delay
    for kind, offset in (("lost", defects.lost), ("altered", defects.copied)):
        chosen = OffsetRange(delay, 0, offset, offset + 1)
        alone = audit(spark, defects.options(tmp_path / kind, ranges=(chosen,)))
        assert found_in(spark, alone) == {(kind, delay, 0, offset)}
        assert [(one.start, one.stop) for one in alone.judged] == [(offset, offset + 1)]


def test_records_that_retention_deleted_are_not_lost(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    """Of a delivery, though another producer's record then comes first and claims to be old, and of
    a cancelled record's outcome, though its due time is later than all that is gone.
    """
    with MadeHistory(cluster.bootstrap) as history:
        h = history
        soon_ms, later_ms = h.now_ms + 60_000, h.now_ms + 120_000
        h.delivered(h.record(h.now_ms - 60_000), h.now_ms - 60_000)
        h.write(h.target, 1, [("own", b"1")])
        h.delivered(h.record(soon_ms), soon_ms)
        victim = h.record(later_ms, ("delay-id", b"a"))
        cancel = h.control(h.now_ms, b"a", b"cancel")
        h.outcome(h.now_ms, "cancelled", victim, cancel)
        h.outcome(soon_ms, "cancelled", cancel)
        lost = h.record(later_ms, ("delay-id", b"b"))
        h.settled(later_ms + 60_000)
        places = [(h.target, 0), (h.outcomes, 0)]
        spans = dict.fromkeys(places, Span(1, 3))
        assert first_times(h.client, spans, DELAY_SETTLES) == dict.fromkeys(places, soon_ms)
        gone = [TopicPartition(*place, 1) for place in places]
        admin = AdminClient({**h.client})
        for future in admin.delete_records(gone).values():
            future.result(30)
        # A cut that was taken before that began lower.
        spans = dict.fromkeys(places, Span(0, 3))
        assert first_times(h.client, spans, DELAY_SETTLES) == dict.fromkeys(places, soon_ms)
        result = audit(spark, audit_options(h, tmp_path))
    assert found_in(spark, result) == {("lost", h.delay, 0, lost)}
    assert result.counts["not_checkable"] == 1


def test_a_range_of_no_shard_is_refused(
    spark: SparkSession, defects: Defects, tmp_path: Path
) -> None:
    ranges = (OffsetRange(defects.made.delay, 9),)
    with pytest.raises(DelayServiceError, match="no shard that the checkpoint knows"):
        audit(spark, defects.options(tmp_path, ranges=ranges))


def test_a_topic_that_does_not_exist_is_named(
    spark: SparkSession, defects: Defects, tmp_path: Path
) -> None:
    with pytest.raises(KafkaEdgeError, match="there is no topic to_nowhere"):
        audit(spark, defects.options(tmp_path, targets=("to_nowhere",)))
    with pytest.raises(KafkaEdgeError, match="there is no topic delay_checkpoint_none"):
        audit(spark, defects.options(tmp_path, checkpoint="delay_checkpoint_none"))
