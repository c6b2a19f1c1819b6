"""The batch audit: every injected defect is found with its offset, and nothing is invented."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from connectors.spark.audit import AuditOptions, AuditResult, OffsetRange, audit
from connectors.spark.audit.verdicts import KINDS
from connectors.spark.common.cut import Span, first_times
from delayservice.core.names import DELAY_SETTLES
from delayservice.dev.cluster import EmbeddedCluster
from delayservice.errors import DelayServiceError, KafkaEdgeError
from tests.spark.made_defects import LATE_MS, OVERDUE_MS, PARTITIONS, SECRET, Defects, Found, inject
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
        overdue_ms=OVERDUE_MS,
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


@pytest.mark.night
def test_with_the_secret_the_same_is_found(
    spark: SparkSession, defects: Defects, tmp_path: Path
) -> None:
    verified = audit(spark, options(defects, tmp_path, secrets=(SECRET,)))
    assert found_in(spark, verified) == defects.injected


def test_a_finding_says_where_the_output_is_and_when_it_was_due(
    spark: SparkSession, result: AuditResult, defects: Defects
) -> None:
    (early,) = [
        row
        for row in spark.read.parquet(result.findings_path).where("kind = 'early'").collect()
        if row["detail"] == "by 1 ms"
    ]
    h = defects.history
    assert early["topic"] == h.delay
    assert early["source"] == f"{h.delay}:0:{early['offset']}"
    assert (early["target"], early["target_partition"]) == (h.target, 0)
    assert early["at_ms"] == early["due_ms"] - 1
    assert early["target_offset"] >= 0


def test_what_is_sound_is_counted(result: AuditResult) -> None:
    counts = result.counts
    assert counts["sources"] == result.records
    assert counts["ordinary"] == 2
    assert counts["foreign"] == 1
    assert counts["copied"] == 3
    assert result.rows_per_s > 0
    assert not result.is_clean


def test_the_summary_is_a_file_and_the_last_record_of_the_topic(
    result: AuditResult, defects: Defects
) -> None:
    said = [json.loads(value) for value in values_of(defects, defects.history.audit)]
    summary = json.loads(Path(result.summary_path).read_text("utf-8"))
    assert summary == said[-1] == json.loads(json.dumps(result.to_json()))
    told = {(one["finding"], one["partition"], one["offset"]) for one in said[:-1]}
    assert told == defects.injected
    assert {one["kind"] for one in said[:-1]} == {"finding"}


def values_of(defects: Defects, topic: str) -> list[bytes]:
    """All that a topic with one partition holds."""
    consumer = Consumer({**defects.history.client, "group.id": "reads", "log_level": 0})
    try:
        place = TopicPartition(topic, 0, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=30)
        consumer.assign([place])
        values: list[bytes] = []
        while len(values) < end:
            values += [message.value() or b"" for message in consumer.consume(1_000, 5)]
        return values
    finally:
        consumer.close()


def test_a_range_is_judged_by_itself(spark: SparkSession, defects: Defects, tmp_path: Path) -> None:
    lost = min(offset for kind, place, offset in defects.injected if (kind, place) == ("lost", 0))
    chosen = OffsetRange(defects.history.delay, 0, lost, lost + 4)
    partial = audit(spark, options(defects, tmp_path, ranges=(chosen,)))
    inside = {
        one for one in defects.injected if one[1] == 0 and chosen.start <= one[2] < chosen.stop
    }
    assert found_in(spark, partial) == inside
    assert [(one.start, one.stop) for one in partial.judged] == [(chosen.start, chosen.stop)]


def test_what_retention_has_taken_is_not_lost(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    """Of a delivery, though another producer's record then comes first and claims to be old, and of
    a cancelled record's outcome, though its due time is later than all that is gone.
    """
    with MadeHistory(cluster.bootstrap) as history:
        h = history
        soon_ms, later_ms = h.now_ms + 60_000, h.now_ms + 120_000
        h.delivery(h.source(h.now_ms - 60_000), h.now_ms - 60_000)
        h.write(h.target, [("own", b"1")], at_ms=1)
        h.delivery(h.source(soon_ms), soon_ms)
        victim = h.source(later_ms, ("delay-id", b"a"))
        cancel = h.write(h.delay, [("delay-id", b"a"), ("delay-op", b"cancel")])
        h.outcome("cancelled", victim, by=cancel)
        h.outcome("cancelled", cancel, at_ms=soon_ms)
        lost = h.source(later_ms, ("delay-id", b"b"))
        h.settled(later_ms + 60_000)
        places = [(h.target, 0), (h.outcomes, 0)]
        spans = dict.fromkeys(places, Span(1, 3))
        assert first_times(h.client, spans, DELAY_SETTLES) == dict.fromkeys(places, soon_ms)
        gone = [TopicPartition(*place, 1) for place in places]
        admin = AdminClient({**h.client})
        for future in admin.delete_records(gone).values():
            future.result(30)
        audited = AuditOptions(
            client=h.client,
            out=str(tmp_path),
            checkpoint=h.checkpoint,
            dead_letter=h.dead_letter,
            outcomes=h.outcomes,
        )
        result = audit(spark, audited)
    assert found_in(spark, result) == {("lost", 0, lost)}
    assert result.counts["not_checkable"] == 1


def test_a_copy_beyond_the_range_settles_what_is_in_it(
    spark: SparkSession, defects: Defects, tmp_path: Path
) -> None:
    chosen = OffsetRange(defects.history.delay, 0, defects.rolled, defects.rolled + 1)
    alone = audit(spark, options(defects, tmp_path, ranges=(chosen,)))
    assert alone.findings == {}


def test_a_range_of_no_shard_is_refused(
    spark: SparkSession, defects: Defects, tmp_path: Path
) -> None:
    ranges = (OffsetRange(defects.history.delay, 9),)
    with pytest.raises(DelayServiceError, match="no shard that the checkpoint knows"):
        audit(spark, options(defects, tmp_path, ranges=ranges))


def test_a_topic_that_does_not_exist_is_named(
    spark: SparkSession, defects: Defects, tmp_path: Path
) -> None:
    with pytest.raises(KafkaEdgeError, match="there is no topic to_nowhere"):
        audit(spark, options(defects, tmp_path, targets=("to_nowhere",)))
    with pytest.raises(KafkaEdgeError, match="there is no topic delay_checkpoint_none"):
        audit(spark, replace(options(defects, tmp_path), checkpoint="delay_checkpoint_none"))
