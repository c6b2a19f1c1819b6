"""The client library's own mock of a cluster, for what only a client without a service needs."""

from __future__ import annotations

from confluent_kafka import Producer


def mock_cluster(*topics: str) -> tuple[Producer, str]:
    """Return a producer that is a cluster of one broker while it lives, with one record in each
    topic, and the broker's address.
    """
    cluster = Producer(
        {"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0, "linger.ms": 0}
    )
    (broker,) = cluster.list_topics(timeout=10).brokers.values()
    for topic in topics:
        cluster.produce(topic, partition=0)
    assert cluster.flush(10) == 0
    return cluster, f"{broker.host}:{broker.port}"
