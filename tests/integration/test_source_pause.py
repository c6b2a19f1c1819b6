"""A pause holds, also one from before the partition was assigned, which the client forgets; and it
ends, also for a consumer that read the partition when it began, which the client does not forget.
It hides no error of a position.
"""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    AdminClient,
    NewTopic,
)

from connectors.kafka.errors import answer_of
from connectors.kafka.source import KafkaSource
from delay_devtools.cluster import EmbeddedCluster
from delayservice.engine.ports import Place
from tests.integration.bench import await_true

pytestmark = pytest.mark.cluster

TOPIC = "paused_before_it_was_assigned"
PLACE = (TOPIC, 0)
LOST = ("paused_where_it_lost_its_position", 0)


def ten_records(client: dict[str, Any], topic: str) -> AdminClient:
    admin = AdminClient(client)
    answer_of(admin.create_topics([NewTopic(topic, 1, 1)])[topic], 30)
    producer = Producer(client)
    for number in range(10):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(30) == 0
    return admin


def test_nothing_is_read_until_it_is_resumed(cluster: EmbeddedCluster) -> None:
    client: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap}
    admin = ten_records(client, TOPIC)
    source = KafkaSource(client, admin, "test")
    try:
        source.pause(PLACE)
        source.seek(PLACE, 0)
        assert sum(len(run.rows) for run in source.poll(2.0, 100)) == 0
        source.seek(PLACE, 4)
        assert sum(len(run.rows) for run in source.poll(1.0, 100)) == 0
        source.resume(PLACE)
        assert read(source, 6) == [4, 5, 6, 7, 8, 9]
    finally:
        source.close()


@pytest.mark.parametrize("again", ["sought", "dropped"])
def test_a_partition_that_is_sought_while_it_is_paused_is_read_on_at_the_head(
    cluster: EmbeddedCluster, again: str
) -> None:
    client: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap}
    topic = f"paused_and_{again}"
    admin = ten_records(client, topic)
    source, place = KafkaSource(client, admin, "test"), (topic, 0)
    try:
        source.seek(place, 0)
        assert read(source, 10) == list(range(10))
        await_true(lambda: is_at_head(source, place), "the other consumer reads it")
        source.pause(place)
        if again == "dropped":
            source.drop(place)
        source.seek(place, 8)
        source.resume(place)
        assert read(source, 2) == [8, 9]
        await_true(lambda: is_at_head(source, place), "the other consumer reads it again")
        producer = Producer(client)
        producer.produce(topic, b"10")
        assert producer.flush(30) == 0
        assert read(source, 1) == [10]
    finally:
        source.close()


def is_at_head(source: KafkaSource, place: Place) -> bool:
    source.poll(0.1, 100)
    return place not in source._catching_up


def read(source: KafkaSource, count: int) -> list[int]:
    """Return the offsets of that many records and of those that come with them."""
    offsets: list[int] = []

    def has_all() -> bool:
        for run in source.poll(0.2, 100):
            offsets.extend(row[0] for row in run.rows)
        return len(offsets) >= count

    await_true(has_all, "everything is read")
    return offsets


def test_a_lost_position_is_reported_for_a_paused_partition_too(cluster: EmbeddedCluster) -> None:
    client: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap}
    admin = ten_records(client, LOST[0])
    deleted = admin.delete_records([TopicPartition(*LOST, 5)])
    for future in deleted.values():
        answer_of(future, 30)
    source, other = KafkaSource(client, admin, "paused"), KafkaSource(client, admin, "other")

    def hears(reader: KafkaSource) -> bool:
        reader.poll(0.2, 100)
        return any(trouble.has_moved for trouble in reader.take_errors())

    try:
        for _ in range(3):
            source.seek(LOST, 2)
            other.seek(LOST, 2)
            await_true(lambda: hears(other), "the error has come")
            source.pause(LOST)
            source.resume(LOST)
            await_true(lambda: hears(source), "the position is lost")
    finally:
        source.close()
        other.close()
