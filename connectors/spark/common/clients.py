"""Clients of librdkafka on the driver: an admin client for each cluster, and a consumer that reads
several logs at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, TopicPartition

from connectors.kafka.clients import KafkaAdmin, admin_client, consumer_client
from connectors.kafka.scan import (
    DAMAGED,
    MOVED,
    SCAN_BATCH,
    SCAN_STALL_S,
    SCAN_STEP_S,
    SCAN_WAIT_MS,
    consumer_config,
    take,
)
from connectors.spark.common.topics import Place, Span, native_options
from delayservice.base.errors import KafkaEdgeError

# Errors after which a log can't be read on. The client gets over all others by itself.
_FATAL: Final = MOVED | DAMAGED | {KafkaError.TOPIC_AUTHORIZATION_FAILED}
_CLUSTERS_MAX: Final = 4


def admin_of(client: Mapping[str, str]) -> KafkaAdmin:
    """Return the admin client for these options. The process keeps it: a new one has to connect
    first, and one comparison or audit asks a dozen times.
    """
    return _admin(frozenset(native_options(client).items()))


@lru_cache(_CLUSTERS_MAX)
def _admin(options: frozenset[tuple[str, str]]) -> KafkaAdmin:
    return admin_client(dict(options))


def read_logs(
    client: Mapping[str, str],
    waiting: dict[Place, Span],
    **more: Any,  # noqa: ANN401  # options of librdkafka
) -> Iterator[Any]:
    """Yield the committed records at offsets of several logs, read by one consumer with the options
    ``more``; and of a log that can't be read on, a message with an error.

    A log is removed from ``waiting`` when its part was read. The caller may remove others.

    Raises:
        KafkaEdgeError: nothing came for a minute, for example because a transaction stays open.
    """
    for place in [place for place, span in waiting.items() if span.start >= span.end]:
        del waiting[place]
    if not waiting:
        return
    config = consumer_config(native_options(client), "spark")
    # At the end of a log the broker keeps a fetch waiting before it says so: here, not for long.
    consumer = consumer_client(config | {"fetch.wait.max.ms": SCAN_WAIT_MS} | more)
    try:
        yield from _read(consumer, waiting)
    finally:
        consumer.close()


def _read(consumer: Consumer, waiting: dict[Place, Span]) -> Iterator[Any]:
    read, heard_s = set(waiting), time.monotonic()
    consumer.assign([TopicPartition(*place, span.start) for place, span in waiting.items()])
    while waiting:
        for message in take(consumer, SCAN_STEP_S, SCAN_BATCH):
            place = (message.topic(), message.partition())
            if place not in waiting:
                continue
            heard_s = time.monotonic()
            end, error = waiting[place].end, message.error()
            is_fatal = error is not None and error.code() in _FATAL
            if is_fatal or (error is None and message.offset() < end):
                yield message
            if is_fatal or _reached(message) >= end:
                waiting.pop(place, None)
        if over := read - waiting.keys():
            consumer.pause([TopicPartition(*place) for place in over])
            read -= over
        if time.monotonic() - heard_s > SCAN_STALL_S:
            raise KafkaEdgeError(f"{min(waiting)} gave nothing for {SCAN_STALL_S:.0f} s")


def _reached(message: Any) -> int:  # noqa: ANN401  # the client's stubs make every field optional
    error = message.error()
    if error is None:
        return int(message.offset()) + 1
    # At the end of a log; other errors are over by themselves.
    return message.offset() if error.code() == KafkaError._PARTITION_EOF else 0  # noqa: SLF001
