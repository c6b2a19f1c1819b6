"""``LevelProducer``: delays of a few fixed lengths, with one topic for each length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from confluent_kafka import Producer

from connectors.kafka.client.base import ANY_PARTITION, DeliveryCallback, ProducerClient
from connectors.kafka.client.places import Places
from delayservice.base.errors import InvalidRequestError
from delayservice.contract.levels import DEFAULT_LEVELS_MS, level_of, level_topic
from delayservice.contract.request import (
    Delay,
    OwnHeaders,
    RequestCheck,
    TargetKey,
    Text,
    delay_ms,
    plain_headers,
    target_headers,
)


class LevelProducer(ProducerClient):
    """Writes records to level topics, in each of which all records wait equally long.

    A level topic costs the service less than the topic of ``DelayProducer``. Its records have no
    ids, so they can't be cancelled.

    ``producer`` and ``close_timeout_s`` are those of ``ProducerClient``.

    Args:
        levels_ms: delays of the levels in the service's settings, ascending, milliseconds.
        topic_prefix: name of a level topic without the level's number.

    Raises:
        InvalidRequestError: ``levels_ms`` is empty, or does not ascend from above 0.
    """

    def __init__(
        self,
        producer: Producer | Mapping[str, Any],
        levels_ms: Sequence[int] = DEFAULT_LEVELS_MS,
        *,
        topic_prefix: str = "delay_topic_",
        close_timeout_s: float = 30.0,
    ) -> None:
        if not levels_ms or any(a >= b for a, b in pairwise((0, *levels_ms))):
            raise InvalidRequestError(f"levels ascend from above 0, not {list(levels_ms)}")
        super().__init__(producer, close_timeout_s=close_timeout_s)
        self._levels_ms = tuple(levels_ms)
        self._names = [level_topic(n, topic_prefix) for n in range(1, len(levels_ms) + 1)]
        self._topics = [Places(self.producer, name) for name in self._names]
        self._checks = [
            RequestCheck(name, 1, level_ms)
            for name, level_ms in zip(self._names, levels_ms, strict=True)
        ]

    def send(
        self,
        topic: str,
        value: Text | None,
        *,
        delay: Delay,
        key: Text | None = None,
        partition: int | None = None,
        target_key: TargetKey = None,
        headers: OwnHeaders = (),
        on_delivery: DeliveryCallback | None = None,
    ) -> int:
        """Write a record that is delivered to ``topic`` after ``delay``, rounded up to a level.

        The other arguments are those of ``DelayProducer.send``.

        Args:
            delay: shortest delay. Beyond the last level, the record waits only as long as that
                level.

        Returns:
            The delay of the chosen level, milliseconds.

        Raises:
            InvalidRequestError: the service can't fulfil the request; nothing was written.
            KafkaEdgeError: the cluster has answered that there is no such level topic.
            BufferError, KafkaException: as by ``Producer.produce``.
        """
        level = level_of(delay_ms("delay", delay), self._levels_ms)
        asked = [*plain_headers(headers), *target_headers(topic, partition, target_key)]
        self._checks[level - 1].check(key, value, asked)
        self._topics[level - 1].check()
        self.producer.produce(
            self._names[level - 1],
            value,
            key,
            ANY_PARTITION,
            on_delivery=on_delivery,
            headers=[*asked],
        )
        return self._levels_ms[level - 1]
