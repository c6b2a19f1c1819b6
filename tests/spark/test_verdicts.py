"""Verdicts on a real cluster: what retention, open transactions and poison leave to be judged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession

from connectors.spark.audit import AuditResult, audit
from connectors.spark.common import cut
from delay_devtools.cluster import EmbeddedCluster
from tests.spark.audits import audit_options
from tests.spark.made_history import MadeHistory, aborted


@pytest.fixture
def history(cluster: EmbeddedCluster) -> Iterator[MadeHistory]:
    with MadeHistory(cluster.bootstrap, 2) as made:
        yield made


def audited(spark: SparkSession, h: MadeHistory, out: Path, **more: object) -> AuditResult:
    h.flush()
    return audit(spark, audit_options(h, out, **more))


def emptied(h: MadeHistory, *places: tuple[str, int]) -> None:
    """Delete all records of some partitions."""
    h.flush()
    gone = [TopicPartition(*place, -1) for place in places]
    for future in h.admin.delete_records(gone).values():
        future.result(30)


def found(result: AuditResult) -> list[tuple[str, int, int]]:
    return [(row["kind"], row["partition"], row["offset"]) for row in result.sample]


def test_an_emptied_dead_letter_topic_leaves_what_is_missing_unjudged(
    spark: SparkSession, history: MadeHistory, tmp_path: Path
) -> None:
    h = history
    h.plain(20)
    refused = h.write(h.delay, h.now_ms, [("delay-at", b"soon")])
    h.letter(h.now_ms, refused, "time-invalid", [("delay-at", b"soon")])
    h.record(h.now_ms - 60_000, partition=1)
    h.settled(h.now_ms - 30_000)
    emptied(h, (h.dead_letter, 0))
    result = audited(spark, h, tmp_path)
    assert (dict(result.findings), dict(result.unjudged)) == ({}, {"evidence_deleted": 2})
    assert (result.status, result.is_clean) == (4, False)
    assert {(r.partition, r.start, r.stop) for r in result.judged} == {(0, 0, 11), (1, 0, 11)}


def test_an_emptied_partition_of_a_target_hides_no_loss_in_another(
    spark: SparkSession, history: MadeHistory, tmp_path: Path
) -> None:
    h = history
    to_one = ("delay-target-partition", b"1")
    lost = h.record(h.now_ms - 60_000, to_one)
    h.plain(2)  # delivered to partition 0 and 1
    h.record(h.now_ms - 60_000, ("delay-target-partition", b"0"))
    h.settled(h.now_ms - 30_000)
    emptied(h, (h.target, 0))
    result = audited(spark, h, tmp_path)
    assert found(result) == [("lost", 0, lost)]
    assert dict(result.unjudged) == {"evidence_deleted": 2}
    assert result.status == 3


def test_records_behind_a_foreign_open_transaction_are_not_judged(
    spark: SparkSession,
    history: MadeHistory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = cut.take_cut.__kwdefaults__ or {}
    monkeypatch.setattr(cut.take_cut, "__kwdefaults__", {**usual, "open_wait_s": 1.0})
    h = history
    h.plain(10)
    h.flush()
    with aborted(h.client) as producer:
        producer.produce(h.target, b"of a stranger", partition=0)
        producer.flush(60)
        hidden = h.record(h.now_ms - 60_000, ("delay-target-partition", b"0"))
        h.settled(h.now_ms - 30_000)
        result = audited(spark, h, tmp_path)
    assert (result.findings, result.unjudged) == ({}, {"behind_open_transaction": 1})
    assert (result.status, [row["offset"] for row in result.unjudged_sample]) == (4, [hidden])
    assert any("stays open" in note for note in result.cut.notes)
    after = audited(spark, h, tmp_path)
    assert found(after) == [("lost", 0, hidden)]


def test_a_vanished_checkpoint_is_no_clean_verdict(
    spark: SparkSession, history: MadeHistory, tmp_path: Path
) -> None:
    h = history
    h.plain(10)
    h.commit(0, h.now_ms - 30_000)
    result = audited(spark, h, tmp_path)
    assert (dict(result.unjudged), result.status) == ({"no_checkpoint": 5}, 4)
    assert [one.partition for one in result.judged] == [0]
