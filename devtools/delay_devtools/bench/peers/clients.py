"""Clients of RocketMQ and NATS, which load and judge use like those of Kafka."""

from __future__ import annotations

import json
from collections.abc import Mapping

from delay_devtools.bench.peers.nats_client import NatsConsumer, NatsProducer
from delay_devtools.bench.peers.rocketmq_client import RocketConsumer, RocketProducer


def producer(client: Mapping[str, str], topic: str) -> NatsProducer | RocketProducer:
    """Connect a producer; ``client`` has the port of NATS, or the command of RocketMQ's client."""
    if "port" in client:
        return NatsProducer(int(client["port"]))
    return RocketProducer(_command(client, "load", topic))


def consumer(client: Mapping[str, str], topic: str) -> NatsConsumer | RocketConsumer:
    """Connect a consumer of a topic from its start; ``client`` as of ``producer``."""
    if "port" in client:
        return NatsConsumer(int(client["port"]), topic)
    return RocketConsumer(_command(client, "judge", topic))


def _command(client: Mapping[str, str], role: str, topic: str) -> list[str]:
    return [*json.loads(client["command"]), role, client["servers"], topic]
