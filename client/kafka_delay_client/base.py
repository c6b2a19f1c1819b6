"""Base class of the client's producers, which wrap a confluent-kafka producer.

A record is *in flight* until the broker has acknowledged it or it has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from confluent_kafka import KafkaError, Message, Producer

from connectors.kafka.clients import FORCED
from delayservice.base.errors import KafkaEdgeError
from kafka_delay_client.places import Places

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
        last call. Call this method regularly.

        Args:
            timeout_s: longest wait for the first of these records, seconds.

        Returns:
            The number of called callbacks.
        """
        return self.producer.poll(timeout_s)

    def flush(self, timeout_s: float = -1.0) -> int:
        """Wait until every record is acknowledged or has failed, and call the ``on_delivery``
        callbacks.

        Args:
            timeout_s: longest wait, seconds; -1: no limit.

        Returns:
            The number of records that are still in flight.
        """
        return self.producer.flush(timeout_s)

    def __len__(self) -> int:
        """Return the number of records in flight plus that of callbacks still to be called."""
        return len(self.producer)

    def __bool__(self) -> bool:
        """Return True, also for an idle producer, whose length is 0."""
        return True

    def __enter__(self) -> Self:
        """Return this producer, for use in a ``with`` block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait up to ``close_timeout_s`` until every record is acknowledged or has failed.

        Raises:
            KafkaEdgeError: some records are still in flight, or their delay topic does not exist.
                If an error ends the block, that error gets a note instead. Any other record that
                failed is reported to its ``on_delivery`` only.
        """
        left = self.flush(self._close_timeout_s)
        missing = next((one.missing for one in self._topics if one.missing), "")
        if not left and not missing:
            return
        text = f"{left} records were not acknowledged within {self._close_timeout_s:g} s"
        if error is None:
            raise KafkaEdgeError(missing or f"{text}; they may or may not be at the broker")
        error.add_note(missing or text)
