"""Base class of the client's producers: a confluent-kafka producer, given or configured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from confluent_kafka import KafkaError, Message, Producer

from delayservice.base.errors import KafkaEdgeError

DeliveryCallback: TypeAlias = Callable[[KafkaError | None, Message], None]

ANY_PARTITION: Final = -1
"""Partition number by which librdkafka lets the partitioner choose."""

DEFAULTS: Final[Mapping[str, Any]] = {
    "partitioner": "murmur2_random",  # that of Java producers; librdkafka's default differs
    "enable.idempotence": True,  # else a retry of the client may write a record twice
}
"""Configuration of a new producer, unless the caller's configuration sets another value."""


class ProducerClient:
    """Wrapper of a producer, whose batching, compression, transactions and delivery reports apply.

    As thread-safe as the producer is.

    Args:
        producer: a producer, used as it is, or the configuration of one, completed with
            ``DEFAULTS``.
        close_timeout_s: longest wait for acknowledgements at the end of a ``with`` block, seconds.
    """

    def __init__(
        self, producer: Producer | Mapping[str, Any], *, close_timeout_s: float = 30.0
    ) -> None:
        self.producer = (
            Producer({**DEFAULTS, **producer}) if isinstance(producer, Mapping) else producer
        )
        self._close_timeout_s = close_timeout_s

    def poll(self, timeout_s: float = 0.0) -> int:
        """Call the callbacks of finished records, waiting up to ``timeout_s`` for one; call it
        regularly. Return the number of callbacks.
        """
        return self.producer.poll(timeout_s)

    def flush(self, timeout_s: float = -1.0) -> int:
        """Wait until every record is acknowledged or has failed; -1: without a time limit.

        Returns:
            The number of records still in flight.
        """
        return self.producer.flush(timeout_s)

    def __len__(self) -> int:
        """Return the number of records in flight, and of delivery reports not served yet."""
        return len(self.producer)

    def __bool__(self) -> bool:
        """Return True: an idle producer, whose length is 0, is not falsy."""
        return True

    def __enter__(self) -> Self:
        """Return this producer."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Flush for at most ``close_timeout_s``.

        Raises:
            KafkaEdgeError: some records were not acknowledged. If an error ends the block, that
                error gets a note instead.
        """
        left = self.flush(self._close_timeout_s)
        if not left:
            return
        text = f"{left} records were not acknowledged within {self._close_timeout_s:g} s"
        if error is None:
            raise KafkaEdgeError(f"{text}; they may or may not be at the broker")
        error.add_note(text)
