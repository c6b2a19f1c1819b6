"""Write a load to another broker: ``python -m delay_devtools.bench.peers.load_process``, with a
``LoadPlan`` on standard input. Its ``client`` names the broker, see ``servers``.
"""

from __future__ import annotations

import json
from typing import cast

from confluent_kafka import Producer

from delay_devtools.bench import wire
from delay_devtools.bench.load_process import LoadPlan, send
from delay_devtools.bench.peers.nats_client import NatsProducer
from delay_devtools.bench.peers.rocketmq_client import RocketProducer


def load(plan: LoadPlan) -> None:
    """Send the load; then report the number of repeated messages."""
    producer: NatsProducer | RocketProducer
    if "port" in plan.client:
        producer = NatsProducer(int(plan.client["port"]))
    else:
        command = [*json.loads(plan.client["command"]), "load", plan.client["servers"], plan.topic]
        producer = RocketProducer(command)
    producer.list_topics(plan.topic, timeout=30)
    errors: list[str] = []
    # It has the methods that a load uses.
    send(plan, cast("Producer", producer), errors)
    wire.tell(wire.TRACE, producer.resent, why=producer.last_error)


if __name__ == "__main__":
    wire.serve(LoadPlan, load)
