"""Judge deliveries of another broker: ``python -m delay_devtools.bench.peers.judge_process``, with
a ``JudgePlan`` on standard input. Its ``client`` names the broker, see ``servers``.
"""

from __future__ import annotations

import json
from typing import cast

from confluent_kafka import Consumer

from delay_devtools.bench import wire
from delay_devtools.bench.judge_process import JudgePlan, read
from delay_devtools.bench.peers.nats_client import NatsConsumer
from delay_devtools.bench.peers.rocketmq_client import RocketConsumer


def judge(plan: JudgePlan) -> None:
    """Read the stream or topic, and send the verdict."""
    consumer: NatsConsumer | RocketConsumer
    if "port" in plan.client:
        consumer = NatsConsumer(int(plan.client["port"]), plan.topic)
    else:
        command = [*json.loads(plan.client["command"]), "judge", plan.client["servers"], plan.topic]
        consumer = RocketConsumer(command)
    # It has the methods that a judge uses.
    read(plan, cast("Consumer", consumer))


if __name__ == "__main__":
    wire.serve(JudgePlan, judge)
