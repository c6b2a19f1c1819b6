"""Where a log ends, asked by one client while the log's leader changes, on real brokers."""

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from connectors.kafka.log_ends import EARLIEST, LATEST, log_bounds, log_ends, offsets_of
from delay_devtools.cluster import EmbeddedCluster
from tests.integration.bench import await_true

TOPIC = "moved"
PLACE = (TOPIC, 0)
LEADER_S = 30


def append(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(TOPIC, b"a record")
    assert producer.flush(LEADER_S) == 0


@pytest.mark.slow
def test_a_client_asks_the_new_leader_when_the_old_one_refuses() -> None:
    with EmbeddedCluster(brokers=3, zookeepers=0) as own:
        admins = [AdminClient({"bootstrap.servers": own.bootstrap}) for _ in range(3)]
        admins[0].create_topics([NewTopic(TOPIC, 1, 3)])[TOPIC].result(LEADER_S)
        append(own.bootstrap)
        for admin in admins:  # so that both remember this leader
            assert offsets_of(admin, [PLACE], LATEST) == {PLACE: 1}
        old = admins[0].list_topics(TOPIC).topics[TOPIC].partitions[0].leader
        own.stop_broker(old, kill=True)
        append(own.bootstrap)
        own.start_broker(old)
        patient, other, third = admins
        assert log_bounds(third, *PLACE)[:2] == (0, 2)
        assert offsets_of(patient, [PLACE], LATEST) == {PLACE: 2}
        assert offsets_of(patient, [PLACE], EARLIEST) == {PLACE: 0}
        what = "the new leader is asked by a client that does not wait"
        await_true(lambda: log_ends(other, [PLACE]) == {PLACE: 2}, what, LEADER_S)
        assert log_bounds(other, *PLACE)[:2] == (0, 2)
