"""An audit that follows: found is what one audit finds, each finding once, wherever it is cut."""

from __future__ import annotations

import itertools
import json
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from pyspark.sql import SparkSession

from connectors.kafka.clients import admin_client
from connectors.spark.audit import (
    AuditOptions,
    AuditResult,
    Following,
    audit,
    local,
    run,
    state,
)
from connectors.spark.audit.engine import FoundRows, StepResult
from connectors.spark.audit.evidence import Evidence, gather
from connectors.spark.common import cut
from connectors.spark.common.session import FAILURES
from delay_devtools.cluster import EmbeddedCluster
from delayservice.base import faults
from tests.integration.bench import Reader
from tests.spark.audits import audit_options, requeued
from tests.spark.made_history import MadeHistory

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


@pytest.fixture(params=["here", "on Spark", "in turns"], autouse=True)
def _where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who judges the steps: this process, Spark, or each in its turn on the other's state."""
    judged_here, turns = local.judged_here, itertools.count()

    def judged(*given: Any) -> StepResult[FoundRows] | None:
        is_here = request.param == "here" or (request.param == "in turns" and next(turns) % 2)
        return judged_here(*given) if is_here else None

    monkeypatch.setattr(run, "judged_here", judged)


def test_pending_records_are_carried_until_they_are_settled(
    spark: SparkSession, history: MadeHistory, tmp_path: Path
) -> None:
    h = history
    soon_ms, later_ms = h.now_ms + MINUTE, h.now_ms + 100 * MINUTE
    first, second, third = (h.source(due) for due in (soon_ms, soon_ms, later_ms))
    h.settled(h.now_ms)
    following = Following(spark, options(h, tmp_path))
    found = step(following)
    assert (found.records, found.counts["pending"], found.findings) == (3, 3, {})

    h.delivery(first, soon_ms)
    h.delivery(third, later_ms, at_ms=soon_ms)  # early, and out of its turn
    h.settled(soon_ms + 1)
    found = step(following)
    assert found.findings == {"early": 1, "lost": 1, "not_checkpointed": 1}
    assert found_in(spark, tmp_path) == [
        ("early", third),
        ("lost", second),
        ("not_checkpointed", third),
    ]
    h.settled(later_ms + 1)
    found = step(following)
    assert (found.findings, found.counts.get("pending", 0)) == ({}, 0)


def test_late_outputs_of_judged_records_are_found(
    spark: SparkSession, history: MadeHistory, tmp_path: Path
) -> None:
    h = history
    due_ms = h.now_ms - MINUTE
    sound, doubled, lost, mirrored = (h.source(due_ms) for _ in range(4))
    for one in (sound, doubled, mirrored):
        h.delivery(one, due_ms)
    h.settled(h.now_ms)
    following = Following(spark, options(h, tmp_path))
    assert step(following).findings == {"lost": 1}
    h.delivery(doubled, due_ms)
    h.delivery(lost, due_ms)
    h.delivery(mirrored, due_ms, topic=h.other)
    h.settled(h.now_ms)
    found = step(following)
    assert found.findings == {"duplicated": 1, "wrong_outcome": 1}
    assert found.counts["mirrored"] == 1
    assert found_in(spark, tmp_path) == [
        ("duplicated", doubled),
        ("lost", lost),
        ("wrong_outcome", lost),
    ]


def test_cancels_find_what_was_pending_at_an_earlier_cut(
    spark: SparkSession, history: MadeHistory, tmp_path: Path
) -> None:
    h = history
    due_ms = h.now_ms + 100 * MINUTE
    told, ignored = (h.source(due_ms, ("delay-id", name)) for name in (b"a", b"b"))
    h.settled(h.now_ms)
    following = Following(spark, options(h, tmp_path))
    assert step(following).counts["pending"] == 2
    cancels = [
        h.write(h.delay, [("delay-id", name), ("delay-op", b"cancel")], value=None)
        for name in (b"a", b"b")
    ]
    h.outcome("cancelled", told, by=cancels[0])
    h.outcome("cancelled", cancels[0])
    h.outcome("not_pending", cancels[1])
    h.settled(h.now_ms)
    found = step(following)
    assert found.findings == {"lost": 1}
    h.settled(due_ms + 1)
    assert step(following).findings == {}
    assert found_in(spark, tmp_path) == [("lost", ignored)]
    (again,) = audit(spark, options(h, tmp_path / "once")).sample
    (row,) = spark.read.parquet(str(tmp_path / "findings")).collect()
    assert (row["kind"], row["id"]) == (again["kind"], again["id"])


def test_a_pending_record_is_stored_once_however_often_its_id_is_named(
    spark: SparkSession, history: MadeHistory, tmp_path: Path
) -> None:
    h = history
    named = ("delay-id", b"a")
    h.source(h.now_ms + 100 * MINUTE, named)
    h.settled(h.now_ms)
    following = Following(spark, options(h, tmp_path))
    step(following)
    for _ in range(2):
        h.write(h.delay, [named, ("delay-op", b"cancel")], value=None)
        h.settled(h.now_ms, [1])  # H has not passed it
        assert step(following).findings == {}
    runs = Following(spark, options(h, tmp_path)).manifest.runs
    assert sum(run.rows for run in runs if run.kind == state.IDENTIFIED) == 1


def test_records_behind_an_open_transaction_are_judged_by_a_later_cut(
    spark: SparkSession, history: MadeHistory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = cut.take_cut.__kwdefaults__ or {}
    monkeypatch.setattr(cut.take_cut, "__kwdefaults__", {**usual, "open_wait_s": 1.0})
    h = history
    due_ms = h.now_ms - MINUTE
    to_other, far = h.source(due_ms, target=h.other), ("delay-id", b"far")
    named = h.source(h.now_ms + 100 * MINUTE, far)
    h.flush()
    tx = {"transactional.id": f"tx-{uuid.uuid4().hex}", "transaction.timeout.ms": 600_000}
    producer = Producer({**h.client, **tx, "log_level": 0})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(h.target, b"of a stranger", partition=0)
    producer.flush(60)
    lost = h.source(due_ms)
    cancel = h.write(h.delay, [far, ("delay-op", b"cancel")], value=None)
    h.outcome("cancelled", cancel, far)
    h.delivery(to_other, due_ms, topic=h.other)
    h.settled(h.now_ms)
    following = Following(spark, options(h, tmp_path))
    hidden = {"behind_open_transaction": 2}
    try:
        for _ in range(2):
            found = following.step()
            assert (found.findings, found.unjudged, found.status) == ({}, hidden, 4)
            assert following.manifest.unjudged == hidden
    finally:
        producer.abort_transaction(60)
    h.outcome("cancelled", named, far, by=cancel)
    h.settled(h.now_ms)
    found = following.step()
    assert (found.findings, found.unjudged, found.status) == ({"lost": 1}, {}, 3)
    assert found_in(spark, tmp_path) == [("lost", lost)]
    assert following.manifest.unjudged == {}


def test_an_output_that_is_ahead_waits_for_its_checkpoint(
    spark: SparkSession, history: MadeHistory, tmp_path: Path
) -> None:
    h = history
    due_ms = h.now_ms - MINUTE
    record = h.source(due_ms)
    h.delivery(record, due_ms, at_ms=h.now_ms + MINUTE)
    h.settled(due_ms - 1)
    following = Following(spark, options(h, tmp_path, grace_ms=MINUTE))
    assert step(following).findings == {}
    h.settled(h.now_ms)
    found = step(following)
    assert (found.findings, found.counts["delivered"]) == ({}, 1)


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
        h.source(h.now_ms - MINUTE)  # lost
        h.settled(h.now_ms)
        with monkeypatch.context() as patched:
            patched.setattr(faults, "point", reached)
            if number == 1:
                with pytest.raises(KeyboardInterrupt, match=point):
                    Following(spark, told).step()
        Following(spark, told).step()
    with Reader(h.client["bootstrap.servers"], [h.other]) as reader:
        said = [json.loads(seen.value or b"") for seen in reader.to_end()]
    findings = Counter(str(one["id"]) for one in said if one["kind"] == "finding")
    assert len(findings) == 2
    assert set(findings.values()) == {1}
    summaries = [one for one in said if one["kind"] == "summary"]
    assert [one["findings"] for one in summaries if one["findings"]] == [{"lost": 1}] * 2
    assert len({one["at_ms"] for one in summaries}) == len(summaries)


def test_pending_records_of_a_recreated_topic_are_not_judged(
    spark: SparkSession, history: MadeHistory, tmp_path: Path
) -> None:
    h = history
    due_ms = h.now_ms + MINUTE
    for _ in range(3):
        h.source(due_ms)
    h.settled(h.now_ms)
    following = Following(spark, options(h, tmp_path))
    assert step(following).counts["pending"] == 3
    h.make_anew()
    record = h.source(due_ms)
    h.delivery(record, due_ms)
    h.settled(due_ms + 1)
    found = step(following)
    assert (found.findings, found.unjudged) == ({}, {"source_deleted": 3})
    assert found.counts["delivered"] == 1
    h.settled(due_ms + MINUTE)
    found = step(following)
    assert (found.findings, found.unjudged) == ({}, {})


def test_a_record_delivered_ahead_of_its_checkpoint_is_not_lost_later(
    spark: SparkSession, history: MadeHistory, tmp_path: Path
) -> None:
    h = history
    due_ms = h.now_ms + 50 * MINUTE
    record = h.source(due_ms)
    h.settled(h.now_ms)
    following = Following(spark, options(h, tmp_path, grace_ms=MINUTE))
    assert step(following).findings == {}
    h.delivery(record, due_ms)
    h.settled(h.now_ms)
    assert step(following).findings == {}
    h.settled(due_ms + 1)
    found = step(following)
    assert (found.findings, found.counts["delivered"]) == ({}, 1)


@pytest.mark.parametrize(("grace_ms", "findings"), [(MINUTE, {}), (1, {"duplicated": 1})])
def test_at_least_once_what_is_delivered_again_is_found_after_the_grace_time(
    spark: SparkSession,
    history: MadeHistory,
    tmp_path: Path,
    grace_ms: int,
    findings: dict[str, int],
) -> None:
    h = history
    due_ms = h.now_ms - 2 * MINUTE
    record = h.source(due_ms)
    h.delivery(record, due_ms, at_ms=due_ms)
    h.settled(h.now_ms)
    following = Following(spark, options(h, tmp_path, grace_ms=grace_ms))
    for _ in range(2):
        assert step(following).findings == {}
    h.delivery(record, due_ms, at_ms=due_ms + 10)
    h.flush()
    found = step(following)
    assert (found.findings, found.counts.get("redelivered", 0)) == (findings, not findings)


def test_a_copy_that_nobody_can_verify_waits_until_h_has_passed_it(
    spark: SparkSession, history: MadeHistory, tmp_path: Path
) -> None:
    """One is refused as forged then, the other is not."""
    h = history
    due_ms = h.now_ms - MINUTE
    records = [h.source(due_ms) for _ in range(2)]
    for record in records:
        h.delivery(record, due_ms)
    signed = [requeued(h, record, due_ms, b"a stranger's") for record in records]
    copies = [h.write(h.delay, headers) for headers in signed]
    h.settled(h.now_ms, [copies[0]])
    following = Following(spark, options(h, tmp_path))
    assert step(following).findings == {}
    h.letter(copies[0], *signed[0], code="copy-forged")
    h.delivery_of_copy(records[1], copies[1], due_ms)
    h.settled(h.now_ms)
    assert step(following).findings == {"duplicated": 1}
    assert found_in(spark, tmp_path) == [("duplicated", records[1])]
    assert audit(spark, options(h, tmp_path / "once")).findings == {"duplicated": 1}


@pytest.mark.parametrize("_where", ["here"], indirect=True)
def test_a_step_whose_records_retention_deletes_meanwhile_is_judged_by_spark(
    spark: SparkSession, history: MadeHistory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    h = history
    records = [h.source(h.now_ms - MINUTE) for _ in range(4)]
    h.delivery(records[3], h.now_ms - MINUTE)
    h.settled(h.now_ms)

    def gathered(*given: Any) -> Evidence:
        evidence = gather(*given)
        (deleted,) = admin_client(h.client).delete_records([TopicPartition(h.delay, 0, 2)]).values()
        deleted.result(30)
        return evidence

    monkeypatch.setattr("connectors.spark.audit.run.gather", gathered)
    found = Following(spark, options(h, tmp_path)).step()
    assert (found.findings, found.counts["delivered"]) == ({"lost": 1}, 1)
    assert found_in(spark, tmp_path) == [("lost", records[2])]


@pytest.mark.parametrize("_where", ["here"], indirect=True)
def test_a_step_that_needs_too_many_stored_rows_is_judged_by_spark(
    spark: SparkSession, history: MadeHistory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    h = history
    due_ms = h.now_ms + MINUTE
    records = [h.source(due_ms) for _ in range(6)]
    h.settled(h.now_ms)
    following = Following(spark, options(h, tmp_path))
    assert following.step().counts["pending"] == len(records)
    h.delivery(records[0], due_ms)
    h.settled(due_ms + 1)
    judged_here, answers = local.judged_here, list[object]()
    monkeypatch.setattr(run, "judged_here", lambda *given: answers.append(judged_here(*given)))
    monkeypatch.setattr(local, "ROWS_MAX", len(records) - 1)
    assert following.step().findings == {"lost": len(records) - 1}
    assert answers == [None]


@pytest.mark.parametrize("_where", ["here"], indirect=True)
def test_a_step_that_reads_a_damaged_log_fails(
    spark: SparkSession, cluster: EmbeddedCluster, history: MadeHistory, tmp_path: Path
) -> None:
    h = history
    h.delivery(h.source(h.now_ms - MINUTE), h.now_ms - MINUTE)
    h.settled(h.now_ms)
    (segment,) = cluster.folder.glob(f"**/{h.target}-0/*.log")
    segment.write_bytes(segment.read_bytes().replace(b"value", b"VALUE"))
    try:
        with pytest.raises(FAILURES):
            Following(spark, options(h, tmp_path)).step()
    finally:  # other tests on this cluster read all topics
        admin_client(h.client).delete_topics([h.target])[h.target].result(60)
