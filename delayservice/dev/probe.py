"""Ask servers whether they are ready. Probes answer at once and never raise."""

import socket
from collections.abc import Callable

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from delayservice.dev.ports import LOOPBACK

_ANSWER_SECONDS_MAX = 1.0


def kafka_probe(port: int, broker_ids: frozenset[int]) -> Callable[[], bool]:
    """Return a probe: does the broker on this port know all of these brokers as alive?"""
    client = AdminClient(
        {
            "bootstrap.servers": f"{LOOPBACK}:{port}",
            "broker.address.family": "v4",
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            # Refused connections are what a probe is for. (The stub forgets callbacks.)
            "log_level": 0,
            "error_cb": lambda _error: None,  # type: ignore[dict-item]
        }
    )

    def ready() -> bool:
        try:
            metadata = client.list_topics(timeout=_ANSWER_SECONDS_MAX)
        except KafkaException:
            return False
        return metadata.controller_id >= 0 and broker_ids <= metadata.brokers.keys()

    return ready


def zookeeper_probe(port: int) -> Callable[[], bool]:
    """Return a probe: does the ZooKeeper server on this port serve clients?"""

    def ready() -> bool:
        try:
            with socket.create_connection((LOOPBACK, port), _ANSWER_SECONDS_MAX) as connection:
                connection.sendall(b"srvr")
                answer = connection.makefile("rb").read()
        except OSError:
            return False
        return b"Mode: " in answer

    return ready
