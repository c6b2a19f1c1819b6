from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeAlias

from delay_devtools.bench.peers.nats_client import NatsConsumer, NatsProducer
from delay_devtools.bench.peers.rocketmq_client import RocketConsumer, RocketProducer

PeerProducer: TypeAlias = NatsProducer | RocketProducer


def producer(client: Mapping[str, str], topic: str) -> PeerProducer:
    if "port" in client:
        return NatsProducer(int(client["port"]))
    return RocketProducer(_command(client, "load", topic))


def consumer(client: Mapping[str, str], topic: str) -> NatsConsumer | RocketConsumer:
    if "port" in client:
        return NatsConsumer(int(client["port"]), topic)
    return RocketConsumer(_command(client, "judge", topic))


def _command(client: Mapping[str, str], role: str, topic: str) -> list[str]:
    return [*json.loads(client["command"]), role, client["servers"], topic]
