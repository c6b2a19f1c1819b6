"""An audit that follows: found is what one audit finds, each finding once, wherever it is cut."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession

from connectors.spark.audit import (
    AuditOptions,
    AuditResult,
    Following,
    local,
    run,
)
from connectors.spark.audit.evidence import Evidence, gather
from connectors.spark.common import cut
from connectors.spark.common.session import FAILURES
from delay_devtools.cluster import EmbeddedCluster
from delayservice.base import faults
from delayservice.base.errors import DelayServiceError
from tests.integration.bench import Reader
from tests.spark.audits import audit_options
from tests.spark.made_history import MadeHistory, aborted

MINUTE = 60_000


@pytest.fixture
def history(cluster: EmbeddedCluster) -> Iterator[MadeHistory]:
    with MadeHistory(cluster.bootstrap) as made:
        yield made


def options(h: MadeHistory, out: Path, **more: object) -> AuditOptions:
    return audit_options(h, out, overdue_ms=None, **more)


def found_in(spark: SparkSession, out: Path) -> list[tuple[str, int]]:
    rows = spark.read.option("recursiveFileLookup", value=True).parquet(str(out / "findings"))
    return sorted((row["kind"], row["offset"]) for row in rows.collect())


def step(following: Following) -> AuditResult:
    """One step, by an audit that was started again: it has nothing but its state."""
    return Following(following._spark, following._options).step()


@pytest.fixture(params=["here", pytest.param("on Spark", marks=pytest.mark.night)])
def anywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are judged in this process, and by Spark's tasks."""
    if request.param == "on Spark":
        monkeypatch.setattr(run, "judged_here", lambda *_: None)


@pytest.mark.usefixtures("anywhere")
def test_records_behind_an_open_transaction_are_judged_by_a_later_cut(
    spark: SparkSession,
    history: MadeHistory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = cut.take_cut.__kwdefaults__ or {}
    monkeypatch.setattr(cut.take_cut, "__kwdefaults__", {**usual, "open_wait_s": 1.0})
    h = history
    due_ms = h.now_ms - MINUTE
    to_other, far = h.record(due_ms, target=h.other), ("delay-id", b"far")
    named = h.record(h.now_ms + 100 * MINUTE, far)
    replaced, _ = (h.record(h.now_ms + 100 * MINUTE, ("delay-id", b"twice")) for _ in range(2))
    h.flush()
    hidden = {"behind_open_transaction": 3}
    with aborted(h.client) as producer:
        producer.produce(h.target, b"of a stranger", partition=0)
        producer.flush(60)
        lost = h.record(due_ms)
        cancel = h.control(h.now_ms, b"far", b"cancel")
        h.outcome(h.now_ms, "cancelled", cancel, None, far)
        h.delivered(to_other, due_ms, topic=h.other)
        h.settled(h.now_ms)
        following = Following(spark, options(h, tmp_path))
        for _ in range(2):
            found = following.step()
            assert (found.findings, found.unjudged, found.status) == ({}, hidden, 4)
            assert following.manifest.unjudged == hidden
    h.outcome(h.now_ms, "cancelled", named, cancel, far)
    h.settled(h.now_ms)
    found = following.step()
    assert (found.findings, found.unjudged, found.status) == ({"lost": 2}, {}, 3)
    assert found_in(spark, tmp_path) == [("lost", replaced), ("lost", lost)]
    assert following.manifest.unjudged == {}


def test_records_of_a_partition_that_no_node_has_served_are_judged_once_one_has(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    with MadeHistory(cluster.bootstrap, 2) as h:
        following = Following(spark, options(h, tmp_path))
        lost = h.record(h.now_ms - MINUTE, partition=1)
        h.commit(0, h.now_ms)
        h.flush()
        for _ in range(2):
            assert following.step().unjudged == {"no_checkpoint": 1}
            assert following.manifest.unjudged == {"no_checkpoint": 1}
        h.settled(h.now_ms)
        following.step()
    assert found_in(spark, tmp_path) == [("lost", lost)]
    assert following.manifest.unjudged == {}


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("audit_judged", marks=pytest.mark.night),
        "audit_committed",
        pytest.param("audit_published", marks=pytest.mark.night),
    ],
)
def test_an_audit_that_ends_anywhere_publishes_each_finding_once(
    spark: SparkSession,
    history: MadeHistory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
) -> None:
    h = history
    told = options(h, tmp_path, topic=h.other)

    def reached(name: str) -> None:
        if name == point:
            raise KeyboardInterrupt(name)

    for number in range(2):
        h.record(h.now_ms - MINUTE)  # lost
        h.settled(h.now_ms)
        with monkeypatch.context() as patched:
            patched.setattr(faults, "point", reached)
            if number == 1:
                with pytest.raises(KeyboardInterrupt, match=point):
                    Following(spark, told).step()
        following = Following(spark, told)
        following.step()
    with Reader(h.client["bootstrap.servers"], [h.other]) as reader:
        reader.await_match(
            lambda seen: json.loads(seen.value or b"")["kind"] == "summary",
            following.manifest.number,
        )
        said = [json.loads(seen.value or b"") for seen in reader.to_end()]
    findings = Counter(str(one["id"]) for one in said if one["kind"] == "finding")
    assert len(findings) == 2
    assert set(findings.values()) == {1}
    summaries = [one for one in said if one["kind"] == "summary"]
    assert [one["findings"] for one in summaries if one["findings"]] == [{"lost": 1}] * 2
    assert len({one["at_ms"] for one in summaries}) == len(summaries)


@pytest.mark.usefixtures("anywhere")
def test_only_the_first_interval_and_those_with_findings_have_folders(
    spark: SparkSession, history: MadeHistory, tmp_path: Path
) -> None:
    h, findings = history, tmp_path / "findings"
    following = Following(spark, options(h, tmp_path, topic=h.other))
    h.settled(h.now_ms)
    for _ in range(2):
        following.step()
        assert spark.read.parquet(str(findings)).where("kind = 'lost'").count() == 0
    lost = h.record(h.now_ms - MINUTE)
    h.settled(h.now_ms)
    following.step()
    # As of a step that was killed before its cut was stored.
    shutil.copytree(findings / "interval=00000003", findings / "interval=00000004")
    following.step()
    assert sorted(path.name[-1] for path in findings.iterdir()) == ["1", "3"]
    assert [path.name[-1] for path in (tmp_path / "unjudged").iterdir()] == ["1"]
    assert found_in(spark, tmp_path) == [("lost", lost)]


def test_a_step_that_failed_after_its_cut_was_stored_is_not_made_again(
    spark: SparkSession, history: MadeHistory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    h = history
    following = Following(spark, options(h, tmp_path))

    def failing(path: str) -> None:
        raise DelayServiceError(f"{path} can't be deleted")

    for number in range(1, 4):
        h.record(h.now_ms - MINUTE)  # lost
        h.settled(h.now_ms)
        if number < 3:
            following.step()
    with monkeypatch.context() as patched:  # it deletes what the first cut has left
        patched.setattr("connectors.spark.audit.state.delete", failing)
        with pytest.raises(DelayServiceError, match="can't be deleted"):
            following.step()
    assert following.step().findings == {}
    assert (following.manifest.number, following.manifest.findings) == (4, {"lost": 3})


def test_pending_records_of_a_recreated_topic_are_not_judged(
    spark: SparkSession, history: MadeHistory, tmp_path: Path
) -> None:
    h = history
    due_ms = h.now_ms + MINUTE
    for _ in range(3):
        h.record(due_ms)
    h.settled(h.now_ms)
    following = Following(spark, options(h, tmp_path))
    assert step(following).counts["pending"] == 3
    h.make_anew()
    record = h.record(due_ms)
    h.delivered(record, due_ms)
    h.settled(due_ms + 1)
    found = step(following)
    assert (found.findings, found.unjudged) == ({}, {"source_deleted": 3})
    assert found.counts["delivered"] == 1
    h.settled(due_ms + MINUTE)
    found = step(following)
    assert (found.findings, found.unjudged) == ({}, {})


def test_a_step_whose_records_retention_deletes_meanwhile_is_judged_by_spark(
    spark: SparkSession, history: MadeHistory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    h = history
    records = [h.record(h.now_ms - MINUTE) for _ in range(4)]
    h.delivered(records[3], h.now_ms - MINUTE)
    h.settled(h.now_ms)

    def gathered(*given: Any) -> Evidence:
        evidence = gather(*given)
        (deleted,) = h.admin.delete_records([TopicPartition(h.delay, 0, 2)]).values()
        deleted.result(30)
        return evidence

    monkeypatch.setattr("connectors.spark.audit.run.gather", gathered)
    found = Following(spark, options(h, tmp_path)).step()
    assert (found.findings, found.counts["delivered"]) == ({"lost": 1}, 1)
    assert found_in(spark, tmp_path) == [("lost", records[2])]


def test_a_step_that_needs_too_many_stored_rows_is_judged_by_spark(
    spark: SparkSession, history: MadeHistory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    h = history
    due_ms = h.now_ms + MINUTE
    records = [h.record(due_ms) for _ in range(6)]
    h.settled(h.now_ms)
    following = Following(spark, options(h, tmp_path))
    assert following.step().counts["pending"] == len(records)
    h.delivered(records[0], due_ms)
    h.settled(due_ms + 1)
    judged_here, answers = local.judged_here, list[object]()
    monkeypatch.setattr(run, "judged_here", lambda *given: answers.append(judged_here(*given)))
    monkeypatch.setattr(local, "ROWS_MAX", len(records) - 1)
    assert following.step().findings == {"lost": len(records) - 1}
    assert answers == [None]


def test_a_step_that_reads_a_damaged_log_fails(
    spark: SparkSession, cluster: EmbeddedCluster, history: MadeHistory, tmp_path: Path
) -> None:
    h = history
    h.delivered(h.record(h.now_ms - MINUTE), h.now_ms - MINUTE)
    h.settled(h.now_ms)
    (segment,) = cluster.folder.glob(f"**/{h.target}-0/*.log")
    segment.write_bytes(segment.read_bytes().replace(b"value", b"VALUE"))
    try:
        with pytest.raises(FAILURES):
            Following(spark, options(h, tmp_path)).step()
    finally:  # other tests on this cluster read all topics
        h.delete(h.target)
