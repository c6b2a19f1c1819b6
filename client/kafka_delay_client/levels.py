"""``LevelProducer``: delays of a few fixed lengths, through one topic for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from confluent_kafka import Producer

from delayservice.base.errors import InvalidRequestError
from delayservice.contract.levels import DEFAULT_LEVELS_MS, level_of, level_topic
from delayservice.contract.request import (
    Delay,
    OwnHeaders,
    TargetKey,
    Text,
    delay_ms,
    plain_headers,
    target_headers,
)
from kafka_delay_client.base import ANY_PARTITION, DeliveryCallback, ProducerClient


class LevelProducer(ProducerClient):
    """Writes records to the level topics, where a record waits as long as its level says.

    A level topic costs the service less than ``DelayProducer``'s topic does, and has no ids: what
    is written there can't be cancelled.

    Args:
        producer: a producer, used as it is, or the configuration of one; ``base.DEFAULTS`` says
            what is added to a configuration.
        levels_ms: the levels that the service is configured with, ascending.
        topic_prefix: what a level's number follows in the name of its topic.
        close_timeout_s: how long the end of a ``with`` block waits for acknowledgements.

    Raises:
        InvalidRequestError: no levels, or they don't ascend.
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
        self._topics = [level_topic(n, topic_prefix) for n in range(1, len(levels_ms) + 1)]

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
        """Write a record that is delivered to ``topic`` after the delay's level.

        Args:
            topic: the target topic.
            value: delivered byte for byte, as key and own headers are.
            delay: at least so long: it waits for the next level up, or the last one, which may be
                shorter than a very long delay.
            key: of the record here and of its output.
            partition: the target partition; None: chosen by the output's key.
            target_key: another key for the output, or ``NO_KEY``.
            headers: own headers.
            on_delivery: told what became of the write, as by ``Producer.produce``.

        Returns:
            The milliseconds that it will wait.

        Raises:
            InvalidRequestError: the service could not do what is asked; nothing was written.
            BufferError, KafkaException: as by ``Producer.produce``.
        """
        level = level_of(delay_ms("delay", delay), self._levels_ms)
        asked = [*plain_headers(headers), *target_headers(topic, partition, target_key)]
        self.producer.produce(
            self._topics[level - 1],
            value,
            key,
            ANY_PARTITION,
            on_delivery=on_delivery,
            headers=asked,
        )
        return self._levels_ms[level - 1]
