"""Base class of the client's producers, which wrap a confluent-kafka producer.

A record is *in flight* until the broker has acknowledged it or it has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from confluent_kafka import KafkaError, Message, Producer

from connectors.kafka.client.places import Places
from connectors.kafka.clients import FORCED
from delayservice.base.errors import KafkaEdgeError

DeliveryCallback: TypeAlias = Callable[[KafkaError | None, Message], None]

ANY_PARTITION: Final = -1
"""Partition number with which librdkafka lets its partitioner choose."""

DEFAULTS: Final[Mapping[str, Any]] = {
    "partitioner": "murmur2_random",  # that of Java producers; librdkafka's default differs
    "enable.idempotence": True,  # else a retry of the client may write a record twice
}
"""Options of a new confluent-kafka producer, which the caller's options override."""


class ProducerClient:
    """Wrapper of a confluent-kafka producer, which batches records, compresses them, and reports
    whether they were written. As thread-safe as that producer is.

    Its length is the number of records in flight plus that of ``on_delivery`` callbacks still to be
    called. The end of a ``with`` block waits until every record is acknowledged or has failed. It
    raises ``KafkaEdgeError`` if some are still in flight or their delay topic does not exist; an
    error that ends the block gets a note instead. Any other record that failed is reported to its
    ``on_delivery`` only.

    Args:
        producer: a producer of confluent-kafka, or options for one that override ``DEFAULTS``. Such
            a new producer creates no topics, whatever the brokers allow.
        close_timeout_s: longest wait for acknowledgements at the end of a ``with`` block, seconds.
    """

    def __init__(
        self, producer: Producer | Mapping[str, Any], *, close_timeout_s: float = 30.0
    ) -> None:
        self.producer = (
            Producer({**DEFAULTS, **producer, **FORCED})
            if isinstance(producer, Mapping)
            else producer
        )
        self._close_timeout_s = close_timeout_s
        self._topics: list[Places] = []
        """Delay topics that this producer writes to."""

    def poll(self, timeout_s: float = 0.0) -> int:
        """Call the ``on_delivery`` callbacks of records that were acknowledged or failed since the
        last call, and return their number. Call this method regularly. ``timeout_s``: longest wait
        for the first of these records, seconds.
        """
        return self.producer.poll(timeout_s)

    def flush(self, timeout_s: float = -1.0) -> int:
        """Wait until every record is acknowledged or has failed, call the ``on_delivery``
        callbacks, and return the number of records still in flight. ``timeout_s``: longest wait,
        seconds; -1: no limit.
        """
        return self.producer.flush(timeout_s)

    def __len__(self) -> int:
        return len(self.producer)

    def __bool__(self) -> bool:
        return True  # also an idle producer, whose length is 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        left = self.flush(self._close_timeout_s)
        missing = next((one.missing for one in self._topics if one.missing), "")
        if not left and not missing:
            return
        text = f"{left} records were not acknowledged within {self._close_timeout_s:g} s"
        if error is None:
            raise KafkaEdgeError(missing or f"{text}; they may or may not be at the broker")
        error.add_note(missing or text)
