"""Plain Kafka clients of the development tools; they share no options with the service."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from connectors.kafka.clients import FORCED, FORCED_CONSUMER, KafkaAdmin
from delayservice.smoke.sending import QUIET

_TOPIC_TIMEOUT_S: Final = 30.0

Headers: TypeAlias = list[tuple[str, str | bytes | None]]


def producer(
    client: Mapping[str, str], transactional_id: str = "", errors: list[str] | None = None
) -> Producer:
    """Return a producer tuned for throughput; ``errors`` collects texts of failed deliveries."""
    found = [] if errors is None else errors

    def note(error: object, _message: object) -> None:
        if error is not None:
            found.append(str(error))

    options: dict[str, Any] = {
        "linger.ms": 5,
        "batch.num.messages": 10_000,
        "batch.size": 1_000_000,
        "queue.buffering.max.messages": 500_000,
        "queue.buffering.max.kbytes": 262_144,
        "message.timeout.ms": 120_000,
        "partitioner": "murmur2_random",
        "enable.idempotence": True,
        **client,
        "acks": "all",
        # A callback for each record would cost as much as the record.
        "delivery.report.only.error": True,
        "on_delivery": note,
        **FORCED,
    }
    if transactional_id:
        options["transactional.id"] = transactional_id
        options["transaction.timeout.ms"] = 900_000  # the most that brokers allow by default
    return Producer(options, logger=QUIET)


def consumer(client: Mapping[str, str], group: str) -> Consumer:
    """Return a ``read_committed`` consumer that commits no offsets; the caller assigns
    partitions.
    """
    options: dict[str, Any] = {
        "fetch.wait.max.ms": 50,
        # Pause before a full queue is checked again: the default of a second limits every
        # consumer to 170,000 small records a second.
        "fetch.queue.backoff.ms": 10,
        **client,
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        **FORCED_CONSUMER,
    }
    return Consumer(options, logger=QUIET)


def admin(client: Mapping[str, str]) -> KafkaAdmin:
    return KafkaAdmin(client, QUIET)


def partitions(client: Consumer, topic: str) -> list[TopicPartition]:
    """Return all partitions of a topic at offset 0; a new topic may be unknown for up to 30 s."""
    deadline_s = time.monotonic() + _TOPIC_TIMEOUT_S
    while True:
        found = client.list_topics(topic, timeout=_TOPIC_TIMEOUT_S).topics[topic]
        if found.partitions:
            return [TopicPartition(topic, number, 0) for number in found.partitions]
        if time.monotonic() > deadline_s:
            raise KafkaException(found.error or KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        time.sleep(0.05)


def take(source: Consumer, timeout_s: float, limit: int) -> list[Any]:
    # Consumer.consume alone would wait for limit messages.
    first = source.poll(timeout_s)
    return [] if first is None else [first, *source.consume(limit - 1, 0)]
