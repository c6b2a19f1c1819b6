"""A pause holds, also one from before the partition was assigned: the client forgets those."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    AdminClient,
    NewTopic,
)

from connectors.kafka.errors import answer_of
from connectors.kafka.source import KafkaSource
from delayservice.dev.cluster import EmbeddedCluster
from tests.integration.bench import await_true

pytestmark = pytest.mark.cluster

TOPIC = "paused_before_it_was_assigned"
PLACE = (TOPIC, 0)


def test_nothing_is_read_until_it_is_resumed(cluster: EmbeddedCluster) -> None:
    client: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap}
    admin = AdminClient(client)
    answer_of(admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC], 30)
    producer = Producer(client)
    for number in range(10):
        producer.produce(TOPIC, b"%d" % number)
    assert producer.flush(30) == 0
    source = KafkaSource(client, admin, "test")
    try:
        source.pause(PLACE)
        source.seek(PLACE, 0)
        assert sum(len(run.rows) for run in source.poll(2.0, 100)) == 0
        source.seek(PLACE, 4)
        assert sum(len(run.rows) for run in source.poll(1.0, 100)) == 0
        source.resume(PLACE)
        offsets: list[int] = []

        def has_all() -> bool:
            for run in source.poll(0.2, 100):
                offsets.extend(row[0] for row in run.rows)
            return len(offsets) >= 6

        await_true(has_all, "everything is read")
        assert offsets == [4, 5, 6, 7, 8, 9]
    finally:
        source.close()
