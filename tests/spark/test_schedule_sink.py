"""The writer of a part on a real broker, without Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import IsolationLevel

from connectors.kafka.clients import admin_client
from connectors.kafka.log_ends import log_bounds
from connectors.spark.common.sink import (
    Record,
    TopicSink,
    _begin_or_resume,
    _Part,
    mark_of,
    records_written,
)
from delay_devtools.cluster import EmbeddedCluster
from delayservice.base import faults
from delayservice.base.errors import DelayServiceError, KafkaEdgeError
from tests.conftest import MakeTopic
from tests.integration.bench import Reader, await_true


@pytest.fixture
def sink(cluster: EmbeddedCluster, make_topic: MakeTopic) -> TopicSink:
    topic = make_topic("delay_topic", partitions=3)
    client = {"bootstrap.servers": cluster.bootstrap}
    return TopicSink(client=client, topic=topic, name=topic, parts=2, record_bytes_max=1_000_000)


def records(*ids: bytes, size: int = 1) -> list[Record]:
    return [(one, b"x" * size, [("none", None)]) for one in ids]


def written(sink: TopicSink) -> list[bytes | None]:
    with Reader(sink.client["bootstrap.servers"], [sink.topic]) as reader:
        return sorted((seen.key for seen in reader.to_end()), key=str)


def test_a_fenced_writer_writes_nothing_more_and_says_so(sink: TopicSink) -> None:
    assert sink.fence() == [None, None]
    old = _Part(sink, 0)
    old.write(records(b"a"), mark_of(0, 1))
    new = _Part(sink, 0)
    assert new.mark == mark_of(0, 1)
    with pytest.raises(KafkaEdgeError, match="another run of this job has taken over"):
        old.write(records(b"b"), mark_of(0, 2))
    new.write(records(b"c"), mark_of(0, 2))
    with Reader(sink.client["bootstrap.servers"], [sink.topic]) as reader:
        reader.await_count(2)
        assert [(one.key, one.headers) for one in reader.to_end()] == [
            (key, [("none", None)]) for key in (b"a", b"c")
        ]


def test_a_task_of_an_earlier_run_that_begins_late_writes_nothing(sink: TopicSink) -> None:
    first = sink.claim()
    part = _Part(sink, 0)
    assert records_written(part.mark or 0, first) == 0
    part.write(records(b"a"), mark_of(first, 1))
    second = sink.claim()
    assert second == first + 1
    late = [_Part(sink, number) for number in range(2)]
    for part in late:
        with pytest.raises(KafkaEdgeError, match="another run has taken over"):
            records_written(part.mark or 0, first)


def test_a_transaction_that_fails_is_ended_at_once(
    sink: TopicSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is open would keep the service, and all other consumers, waiting."""

    def fail(name: str) -> None:
        if name == "bulk_flushed":
            raise OSError("no power")

    monkeypatch.setattr(faults, "point", fail)
    part = _Part(sink, 0)
    assert part.mark is None
    with pytest.raises(OSError, match="no power"):
        part.write(records(b"a", b"b", b"c", b"d"), mark_of(0, 4))
    admin = admin_client(sink.client)

    def is_over() -> bool:
        stable = IsolationLevel.READ_COMMITTED
        ends = [
            (log_bounds(admin, sink.topic, n)[1], log_bounds(admin, sink.topic, n, stable)[1])
            for n in range(3)
        ]
        return all(end == stable_end for end, stable_end in ends)

    await_true(is_over, "no transaction is open", 5)
    assert written(sink) == []
    assert sink.fence()[0] is None


def test_a_record_that_the_topic_does_not_take_is_named_by_its_error(sink: TopicSink) -> None:
    part = _Part(replace(sink, record_bytes_max=3_000_000), 0)
    assert part.mark is None
    with pytest.raises(KafkaEdgeError, match=r"(?i)size.*large"):
        part.write(records(b"a", size=2_000_000), mark_of(0, 1))
    assert written(sink) == []


def test_publications_that_kafka_has_forgotten_are_not_taken_for_the_first_ones(
    sink: TopicSink, tmp_path: Path
) -> None:
    """As after the brokers' ``offsets.retention.minutes`` without one."""
    begun = tmp_path / "published"
    _begin_or_resume(sink, str(begun))
    part = _Part(sink, 0)
    assert part.mark == 0
    part.write(records(b"a"), mark_of(1, 1))
    _begin_or_resume(sink, str(begun))
    assert sink.fence() == [mark_of(1, 1), 0]
    admin = admin_client(sink.client)  # kept: its answers end with it
    (gone,) = admin.delete_consumer_groups([sink.name]).values()
    gone.result(30)
    with pytest.raises(DelayServiceError, match=r"is not known any more.* delete .*/published"):
        _begin_or_resume(sink, str(begun))
    begun.unlink()
    _begin_or_resume(sink, str(begun))
    assert sink.fence() == [0, 0]
