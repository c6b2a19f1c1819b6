"""Verdicts on a real cluster: what retention, open transactions and poison leave to be judged."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from connectors.spark.audit import AuditResult, audit
from connectors.spark.common import cut
from delay_devtools.cluster import EmbeddedCluster
from tests.spark.audits import audit_options
from tests.spark.made_history import MadeHistory


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
    admin = AdminClient({**h.client})  # kept: its answers end with it
    for future in admin.delete_records(gone).values():
        future.result(30)


def found(result: AuditResult) -> list[tuple[str, int, int]]:
    return [(row["kind"], row["partition"], row["offset"]) for row in result.sample]


def test_an_emptied_dead_letter_topic_leaves_what_is_missing_unjudged(
    spark: SparkSession, history: MadeHistory, tmp_path: Path
) -> None:
    h = history
    h.plain(20)
    refused = h.write(h.delay, [("delay-at", b"soon")])
    h.letter(refused, ("delay-at", b"soon"), code="time-invalid")
    h.source(h.now_ms - 60_000, partition=1)
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
    lost = h.source(h.now_ms - 60_000, to_one)
    h.plain(2)  # delivered to partition 0 and 1
    h.source(h.now_ms - 60_000, ("delay-target-partition", b"0"))
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
    options = {**h.client, "transactional.id": f"tx-{uuid.uuid4().hex}", "log_level": 0}
    producer = Producer(options)
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(h.target, b"of a stranger", partition=0)
    producer.flush(60)
    hidden = h.source(h.now_ms - 60_000, ("delay-target-partition", b"0"))
    h.settled(h.now_ms - 30_000)
    try:
        result = audited(spark, h, tmp_path)
    finally:
        producer.abort_transaction(60)
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


def test_poison_of_any_producer_is_found_and_ends_no_job(
    spark: SparkSession, history: MadeHistory, tmp_path: Path
) -> None:
    h = history
    h.plain(4)
    place = f"{h.delay}:0:0".encode()
    bad = [
        (b"9" * 4_400, place),
        ("\N{ARABIC-INDIC DIGIT THREE}".encode(), place),
        (b"0", b"\xff\xfe"),
    ]
    told = [
        [("delay-due-at", b"9" * 40), ("delay-source", source), ("delay-settles", settles)]
        for settles, source in bad
    ]
    offsets = [h.write(h.other, headers) for headers in told]
    h.settled(h.now_ms - 30_000)
    result = audited(spark, h, tmp_path)
    assert found(result) == [("malformed", 0, offset) for offset in offsets]
    assert {row["topic"] for row in result.sample} == {h.other}
    assert result.counts["delivered"] == 4


def test_the_right_outcome_is_derived_across_the_log(
    spark: SparkSession, history: MadeHistory, tmp_path: Path
) -> None:
    """A few histories through Spark; the others are in ``tests/unit/test_spark_histories.py``."""
    h = history
    far_ms = h.now_ms + 30 * 60_000  # a broker takes no timestamp further ahead than an hour
    named = ("delay-id", b"a")
    ignored = h.source(far_ms, named)
    cancel = h.write(h.delay, [named, ("delay-op", b"cancel")])
    h.outcome("not_pending", cancel, at_ms=h.now_ms)
    h.delivery(ignored, far_ms, more=[named])
    again = ("delay-id", b"b")
    old = h.source(far_ms, again)
    new = h.source(far_ms + 60_000, again)
    h.delivery(old, far_ms, more=[again])
    h.delivery(new, far_ms + 60_000, more=[again])
    sound = h.source(h.now_ms - 60_000)
    h.delivery(sound, h.now_ms - 60_000)
    h.delivery(sound, h.now_ms - 60_000, topic=h.other)  # by a consumer
    h.settled(far_ms + 120_000)
    result = audited(spark, h, tmp_path)
    assert found(result) == [("wrong_outcome", 0, ignored), ("wrong_outcome", 0, old)]
    assert result.counts["mirrored"] == 1
