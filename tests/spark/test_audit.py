"""The batch audit: every injected defect is found with its offset, and nothing is invented."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from connectors.spark.audit import AuditOptions, AuditResult, OffsetRange, audit, verdicts
from connectors.spark.common.log_times import first_times
from connectors.spark.common.topics import Span
from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.drill.run import (
    KINDS,
    Drill,
    DrillOptions,
    audit_options,
    prepared,
    read_findings,
)
from delay_devtools.drill.stage import Found
from delay_devtools.drill.writing import TopicAdmin
from delayservice.base.errors import DelayServiceError, KafkaEdgeError
from delayservice.contract.names import DELAY_SETTLES
from tests.integration.bench import Reader
from tests.spark.made_history import MadeHistory


@pytest.fixture(scope="module")
def drill(cluster: EmbeddedCluster) -> Iterator[Drill]:
    """Every defect that a drill knows of, once."""
    options = DrillOptions(1_500, len(KINDS), partitions=2, bootstrap=cluster.bootstrap)
    with prepared(options, is_shown=False) as made:
        TopicAdmin(cluster.bootstrap).make({made.life.names.own("audit"): 1}, {})
        yield made


def injected(drill: Drill) -> set[Found]:
    """What an audit must find."""
    findings = [found for one in drill.defects if "topics" in one.worlds for found in one.findings]
    return {found for found in findings if isinstance(found, Found)}


def found_in(spark: SparkSession, result: AuditResult) -> set[tuple[object, ...]]:
    return {found[1:] for found in read_findings(spark, result.findings_path, "topics", 9)}


@pytest.fixture(scope="module")
def result(
    spark: SparkSession, drill: Drill, tmp_path_factory: pytest.TempPathFactory
) -> AuditResult:
    out = tmp_path_factory.mktemp("audit")
    return audit(spark, audit_options(drill, str(out), topic=drill.life.names.own("audit")))


@pytest.fixture(scope="module")
def found(spark: SparkSession, result: AuditResult) -> set[tuple[object, ...]]:
    return found_in(spark, result)


# A flood of outputs is in tests/unit/test_spark_judge.py: it takes thousands of records.
@pytest.mark.parametrize("kind", [one for one in verdicts.KINDS if one != verdicts.FLOODED])
def test_every_defect_is_found_with_its_offset_and_none_is_invented(
    kind: str, found: set[tuple[object, ...]], drill: Drill
) -> None:
    wanted = {one for one in injected(drill) if one.kind == kind}
    assert wanted
    assert {one for one in found if one[0] == kind} == wanted


@pytest.mark.night
def test_without_the_secret_the_same_is_found(
    spark: SparkSession, drill: Drill, tmp_path: Path
) -> None:
    unverified = audit(spark, audit_options(drill, str(tmp_path), secrets=()))
    assert found_in(spark, unverified) == injected(drill)


def test_a_finding_says_where_the_output_is_and_when_it_was_due(
    spark: SparkSession, result: AuditResult, drill: Drill
) -> None:
    (early,) = spark.read.parquet(result.findings_path).where("kind = 'early'").collect()
    (wanted,) = [one for one in injected(drill) if one.kind == "early"]
    assert early["source"] == f"{wanted.topic}:{wanted.partition}:{wanted.offset}"
    assert (early["target"], early["target_partition"], early["target_offset"]) == wanted.output
    assert early["detail"] == f"by {early['due_ms'] - early['at_ms']} ms"


def test_what_is_sound_is_counted(result: AuditResult) -> None:
    counts = result.counts
    assert counts["sources"] == result.records
    assert counts["ordinary"] == 2
    assert counts["foreign"] == 1
    assert (counts["mirrored"], counts["redelivered"]) == (2, 2)
    assert counts["copied"] > 10
    assert counts["source_expired"] > 0
    assert result.rows_per_s > 0
    assert not result.is_clean


def test_the_summary_is_a_file_and_the_last_record_of_the_topic(
    result: AuditResult, drill: Drill
) -> None:
    with Reader(drill.bootstrap, [drill.life.names.own("audit")]) as reader:
        said = [json.loads(seen.value or b"") for seen in reader.to_end()]
    summary = json.loads(Path(result.summary_path).read_text("utf-8"))
    assert summary == said[-1] == json.loads(json.dumps(result.to_json()))
    told = {(one["finding"], one["topic"], one["partition"], one["offset"]) for one in said[:-1]}
    assert told == {one[:4] for one in injected(drill)}
    assert {one["kind"] for one in said[:-1]} == {"finding"}


def test_a_range_is_judged_by_itself(spark: SparkSession, drill: Drill, tmp_path: Path) -> None:
    lost = min(one for one in injected(drill) if one.kind == "lost")
    chosen = OffsetRange(lost.topic, lost.partition, lost.offset, lost.offset + 4)
    partial = audit(spark, audit_options(drill, str(tmp_path), ranges=(chosen,)))
    inside = {
        one
        for one in injected(drill)
        if one[1:3] == (chosen.topic, chosen.partition)
        and one.offset in range(lost.offset, chosen.stop)
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
            allow=tuple(h.allow),
        )
        result = audit(spark, audited)
    assert {one[:4] for one in found_in(spark, result)} == {("lost", h.delay, 0, lost)}
    assert result.counts["not_checkable"] == 1


def test_a_copy_beyond_the_range_settles_what_is_in_it(
    spark: SparkSession, drill: Drill, tmp_path: Path
) -> None:
    """It is altered, and not lost."""
    (copied,) = next(one for one in drill.defects if one.kind == "requeued_without_id").findings
    assert isinstance(copied, Found)
    chosen = OffsetRange(copied.topic, copied.partition, copied.offset, copied.offset + 1)
    alone = audit(spark, audit_options(drill, str(tmp_path), ranges=(chosen,)))
    assert found_in(spark, alone) == {copied}


def test_a_range_of_no_shard_is_refused(spark: SparkSession, drill: Drill, tmp_path: Path) -> None:
    ranges = (OffsetRange(drill.life.names.delay, 9),)
    with pytest.raises(DelayServiceError, match="no shard that the checkpoint knows"):
        audit(spark, audit_options(drill, str(tmp_path), ranges=ranges))


def test_a_topic_that_does_not_exist_is_named(
    spark: SparkSession, drill: Drill, tmp_path: Path
) -> None:
    with pytest.raises(KafkaEdgeError, match="there is no topic to_nowhere"):
        audit(spark, audit_options(drill, str(tmp_path), targets=("to_nowhere",)))
    with pytest.raises(KafkaEdgeError, match="there is no topic delay_checkpoint_none"):
        audit(spark, audit_options(drill, str(tmp_path), checkpoint="delay_checkpoint_none"))
