"""Clients of RocketMQ and NATS, with those methods of Kafka clients that the bench's load process
(which sends) and judge process (which receives) call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeAlias

from delay_devtools.bench.peers.nats_client import NatsConsumer, NatsProducer
from delay_devtools.bench.peers.rocketmq_client import RocketConsumer, RocketProducer

PeerProducer: TypeAlias = NatsProducer | RocketProducer


def producer(client: Mapping[str, str], topic: str) -> PeerProducer:
    """Return a producer of messages for ``topic``. ``client`` has the key ``port`` for NATS; for
    RocketMQ ``command`` (of the Java program, words in JSON) and ``servers`` (``host:port`` of the
    name server).
    """
    if "port" in client:
        return NatsProducer(int(client["port"]))
    return RocketProducer(_command(client, "load", topic))


def consumer(client: Mapping[str, str], topic: str) -> NatsConsumer | RocketConsumer:
    """Return a consumer that reads ``topic`` from its start; ``client`` has the same keys as for
    ``producer``.
    """
    if "port" in client:
        return NatsConsumer(int(client["port"]), topic)
    return RocketConsumer(_command(client, "judge", topic))


def _command(client: Mapping[str, str], role: str, topic: str) -> list[str]:
    return [*json.loads(client["command"]), role, client["servers"], topic]
