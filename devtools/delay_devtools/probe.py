"""Probes of servers for readiness: functions that return True or False within about a second and
never raise.

A probe checks the identity of the server: when two clusters choose the same port at the same time,
the loser must not take the winner's server for its own.
"""

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

_ANSWER_SECONDS_MAX = 1.0


def kafka_probe(address: str, cluster_id: str, broker_ids: frozenset[int]) -> Callable[[], bool]:
    """Return a probe for a broker that has a controller and knows all ``broker_ids`` as alive."""
    client = AdminClient(
        {
            "bootstrap.servers": address,
            "broker.address.family": "v4",
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            # Refused connections are expected here: no log lines. (The stub lacks callbacks.)
            "log_level": 0,
            "error_cb": lambda _error: None,  # type: ignore[dict-item]
        }
    )

    def ready() -> bool:
        try:
            metadata = client.list_topics(timeout=_ANSWER_SECONDS_MAX)
        except KafkaException:
            return False
        has_controller = metadata.controller_id >= 0
        is_ours = metadata.cluster_id == cluster_id
        return is_ours and has_controller and broker_ids <= metadata.brokers.keys()

    return ready


def zookeeper_probe(host: str, port: int, data: Path) -> Callable[[], bool]:
    def ready() -> bool:
        # Until it serves clients, a server answers ``conf`` with a message, not its settings.
        return os.fsencode(data) in _zookeeper_conf(host, port)

    return ready


def zookeeper_tick_s(hosts: str) -> float | None:
    """Return the tick (unit of session timeouts) of the first server, in s."""
    host, _, port = hosts.partition(",")[0].rpartition(":")
    found = re.search(rb"^tickTime=(\d+)$", _zookeeper_conf(host, int(port)), re.MULTILINE)
    return int(found[1]) / 1_000 if found else None


def _zookeeper_conf(host: str, port: int) -> bytes:
    try:
        with socket.create_connection((host, port), _ANSWER_SECONDS_MAX) as connection:
            connection.sendall(b"conf")
            return connection.makefile("rb").read()
    except OSError:
        return b""
