"""Configures consumers without a group, and scans ranges of a log with such a consumer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from operator import methodcaller
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, TopicPartition

from connectors.kafka.clients import KAFKA, RECONNECT_MS_MAX, Clients
from connectors.kafka.headers import headers_of
from delayservice.base.errors import KafkaEdgeError
from delayservice.contract.entry import PolledRecord
from delayservice.engine.ports import Place, PolledBatch

# Time without records after which a scan fails, in s.
SCAN_STALL_S: Final = 60.0
# Longest time that a scan waits for records at once, in s.
SCAN_STEP_S: Final = 0.2
# Largest number of records that a scan yields together.
SCAN_BATCH: Final = 5_000
SCAN_WAIT_MS: Final = 10
# Error codes for an offset that the log does not hold.
MOVED: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})  # noqa: SLF001
# Error codes for a batch of records that was altered on a broker's disk or on the way. What a
# consumer returns of the partition after such an error is no use: it looks for the next batch at a
# wrong place, and may go on at a wrong offset.
DAMAGED: Final = frozenset(
    {
        KafkaError._BAD_MSG,  # noqa: SLF001  # its checksum is wrong (``check.crcs``)
        KafkaError._BAD_COMPRESSION,  # noqa: SLF001
        KafkaError._NOT_IMPLEMENTED,  # noqa: SLF001  # a format version that does not exist
        KafkaError.INVALID_MSG,  # the broker itself can't read it
    }
)
READ_HINT: Final = "give the service Read on this topic"


def consumer_config(client: Mapping[str, str], name: str) -> dict[str, Any]:
    """Return options of a read-committed consumer that joins no group and commits no offsets."""
    return {
        "reconnect.backoff.max.ms": RECONNECT_MS_MAX,
        "fetch.wait.max.ms": 500,
        "fetch.error.backoff.ms": 100,
        "fetch.queue.backoff.ms": 20,  # the default, a second, is how long a full queue pauses it
        "queued.max.messages.kbytes": 16_384,
        **client,
        "group.id": f"delayservice-{name}",  # required by the client; nothing is ever joined
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
    }


def row_of(message: Any) -> PolledRecord:  # noqa: ANN401  # the client's stubs make every field optional
    timestamp_ms = message.timestamp()[1]
    return (message.offset(), timestamp_ms, message.key(), message.value(), headers_of(message))


def why_damaged(place: Place, message: Any) -> str:  # noqa: ANN401  # as in ``row_of``
    return f"{place[0]}:{place[1]} is damaged at offset {message.offset()}: {message.error().str()}"


def take(consumer: Consumer, timeout_s: float, limit: int, gather_s: float = 0.0) -> list[Any]:
    # ``consume`` alone would wait until it has ``limit``.
    return and_more(consumer, consumer.poll(timeout_s), limit, gather_s)


def and_more(
    consumer: Consumer,
    first: Any,  # noqa: ANN401  # as in ``row_of``
    limit: int,
    gather_s: float,
) -> list[Any]:
    return [] if first is None else [first, *consumer.consume(limit - 1, gather_s)]


def _check_event(place: Place, at: int, message: Any) -> None:  # noqa: ANN401  # as in ``row_of``
    code = message.error().code()
    if code in MOVED:
        raise KafkaEdgeError(f"{place[0]}:{place[1]} no longer holds offset {at}")
    if code in DAMAGED:
        raise KafkaEdgeError(why_damaged(place, message))
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise KafkaEdgeError(f"{place[0]} may not be read: Read on it is missing")


def scan_partition(
    config: Mapping[str, Any],
    topic: str,
    partition: int,
    start: int,
    stop: int,
    clients: Clients = KAFKA,
    close: Callable[[Consumer], object] = methodcaller("close"),
) -> Iterator[PolledBatch]:
    """Yield the records with offsets in ``[start, stop)`` in batches, read with a new consumer;
    ``stop`` must not be above the log's end. After ``SCAN_STEP_S`` without a record, yield a batch
    without any, so that the caller may go on with something else. ``KafkaEdgeError``: nothing came
    for a minute, for example because a transaction stays open; the log no longer holds the range,
    or is damaged; or the right to read is missing.
    """
    # At the end of a log the broker keeps a fetch waiting before it says so: here, not for long.
    own = {**config, "fetch.wait.max.ms": SCAN_WAIT_MS}
    consumer, monotonic_s = clients.consumer(own), clients.monotonic_s
    try:
        consumer.assign([TopicPartition(topic, partition, start)])
        heard_s = monotonic_s()
        at = start
        while at < stop:
            messages = take(consumer, SCAN_STEP_S, SCAN_BATCH)
            if not messages and monotonic_s() - heard_s > SCAN_STALL_S:
                raise KafkaEdgeError(f"{topic}:{partition} gave nothing from offset {at} on")
            rows: list[PolledRecord] = []
            reached = at
            for message in messages:
                error = message.error()
                if error is None:
                    reached = message.offset() + 1
                    if message.offset() < stop:
                        rows.append(row_of(message))
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                    reached = max(reached, message.offset())
                else:
                    _check_event((topic, partition), at, message)
            if reached > at:
                heard_s = monotonic_s()
            yield PolledBatch((topic, partition), at, rows, min(reached, stop))
            at = reached
    finally:
        close(consumer)


def close_aside(consumer: Consumer) -> None:
    # It takes a while when a broker does not answer, and the worker's loop must not wait for it.
    threading.Thread(target=consumer.close, name="closing", daemon=True).start()
