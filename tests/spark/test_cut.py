"""A cut finds the newest committed checkpoint of every slice, wherever it lies in its partition."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from connectors.spark.audit import AuditOptions, audit_at
from connectors.spark.common import cut
from connectors.spark.common.clients import read_logs
from connectors.spark.common.cut import Cut, take_cut
from connectors.spark.common.topics import Place, Span
from delay_devtools.cluster import EmbeddedCluster
from delayservice.base.errors import InvalidRequestError, KafkaEdgeError
from tests.spark.audits import audit_options
from tests.spark.made_history import MadeHistory

SLICES = 5
BUSY = 3_000
"""Commits of a slice beside which another's newest checkpoint lies far behind the end."""


@pytest.fixture
def history(cluster: EmbeddedCluster) -> Iterator[MadeHistory]:
    """Slices 0, 2 and 4 share a partition of the checkpoint topic, and 1 and 3 another one."""
    with MadeHistory(cluster.bootstrap, SLICES, checkpoint_partitions=2) as made:
        yield made


def cut_of(history: MadeHistory) -> Cut:
    return take_cut(history.client, history.checkpoint, lambda *_: ())


def keys_of(cut: Cut) -> dict[int, int]:
    """K by slice."""
    assert all(shard.earlier == shard.later for shard in cut.shards)
    return {shard.partition: shard.later.key[0] for shard in cut.shards}


def busy(history: MadeHistory, number: int, key_ms: int) -> None:
    """Many commits of one slice, with failed ones of the others between and after them."""
    others = [n for n in range(SLICES) if n % 2 == number % 2 and n != number]
    for _ in range(3):
        for _ in range(BUSY // 3):
            history.commit(number, key_ms)
        for other in others:
            history.commit_in_vain(other, key_ms + 10**9, 40)


def test_the_newest_checkpoint_of_a_slice_may_lie_far_behind_that_of_another(
    history: MadeHistory,
) -> None:
    for number in range(SLICES):
        history.commit(number, 100 + number)
        history.commit(number, 200 + number)
    busy(history, 2, 300)
    history.flush()
    assert keys_of(cut_of(history)) == {0: 200, 1: 201, 2: 300, 3: 203, 4: 204}


def test_a_partition_is_read_once_and_no_further_than_is_needed(
    history: MadeHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key_ms in range(1, 21):
        for number, _ in itertools.product(range(SLICES), range(100)):
            history.commit(number, key_ms)
    history.flush()
    stretches: list[dict[int, Span]] = []

    def noted(client: dict[str, str], spans: dict[Place, Span]) -> Iterator[object]:
        stretches.append({number: span for (_, number), span in spans.items()})
        return read_logs(client, spans)

    monkeypatch.setattr(cut, "read_logs", noted)
    assert keys_of(cut_of(history)) == dict.fromkeys(range(SLICES), 20)
    earlier = {0: Span(5_488, 6_000), 1: Span(3_488, 4_000)}
    later = {0: Span(6_000, 6_000), 1: Span(4_000, 4_000)}
    assert stretches == [earlier, later]


def test_checkpoints_of_a_cut_are_those_before_and_those_after_its_ends(
    history: MadeHistory,
) -> None:
    history.settled(100)

    def choose(_: object) -> tuple[str, ...]:
        history.commit(3, 300)
        history.flush()
        return ()

    shards = take_cut(history.client, history.checkpoint, choose).shards
    assert {s.partition: s.earlier.key[0] for s in shards} == dict.fromkeys(range(SLICES), 100)
    assert {s.partition: s.later.key[0] for s in shards} == {0: 100, 1: 100, 2: 100, 3: 300, 4: 100}


def test_slices_that_were_never_served_are_looked_for_and_noted(history: MadeHistory) -> None:
    for _ in range(BUSY):
        history.commit(0, 100)
    history.flush()
    cut = cut_of(history)
    assert keys_of(cut) == {0: 100}
    assert len(cut.notes) == SLICES - 1


def test_foreign_records_in_the_checkpoint_topic_are_skipped(history: MadeHistory) -> None:
    history.settled(100)
    for _ in range(BUSY):  # slice 1's own checkpoint is found after what is elsewhere
        history.commit(3, 100)
    history.flush()
    producer = Producer(history.client)
    for key in (b"elsewhere", None, b"1"):  # the last one belongs into the other partition
        producer.produce(history.checkpoint, b"nothing of the service", key, 0)
    producer.produce(history.checkpoint, None, b"0", 0)
    producer.flush()
    assert keys_of(cut_of(history)) == dict.fromkeys(range(SLICES), 100)


def test_a_checkpoint_that_speaks_of_another_slice_is_refused(history: MadeHistory) -> None:
    history.settled(100)
    foreign = history.checkpoint_of(3, 100)
    history.write(history.checkpoint, history.now_ms, [], key=b"0", value=foreign)
    history.flush()
    with pytest.raises(KafkaEdgeError, match="checkpoint of slice 0 is of slice 3"):
        cut_of(history)


def test_an_audit_reads_what_settings_allow(tmp_path: Path) -> None:
    options = AuditOptions({}, str(tmp_path), allow=("orders*",), never=("own_claims",))
    own = {"delay_dead_letter", "delay_outcomes"}
    topics = {*own, "delay_x", "__x", "own_claims", "orders", "orders2", "mails"}
    assert options.choose(topics) == {*own, "orders", "orders2"}
    unknown = replace(options, allow=None)
    assert unknown.choose(topics) == {*own, "orders", "orders2", "mails"}


def test_an_audit_of_all_topics_reads_none_of_the_service(tmp_path: Path) -> None:
    options = AuditOptions(
        {}, str(tmp_path), all_topics=True, topic="findings", never=("delay_pauses",)
    )
    topics = ["delay_checkpoint", "delay_checkpoint_claims", "delay_dead_letter", "delay_outcomes"]
    chosen = options.choose([*topics, "delay_pauses", "findings", "__internal", "orders"])
    assert chosen == {"delay_dead_letter", "delay_outcomes", "orders"}
    with pytest.raises(KafkaEdgeError, match="there is no topic findings"):
        options.choose([*topics, "orders"])


def test_an_audit_uses_the_topic_names_of_its_options(
    spark: SparkSession, history: MadeHistory, tmp_path: Path
) -> None:
    refused = history.write(history.delay, history.now_ms, [("delay-at", b"soon")])
    history.letter(history.now_ms, refused, "time-invalid", [("delay-at", b"soon")])
    history.settled(history.now_ms)
    options = audit_options(history, tmp_path)
    with pytest.raises(InvalidRequestError, match="the cut leaves out delay_dead_letter_"):
        audit_at(spark, options, cut_of(history))
    taken = take_cut(history.client, history.checkpoint, options.choose)
    found = audit_at(spark, options, taken)
    assert (found.status, found.counts["dead_lettered"]) == (0, 1)
