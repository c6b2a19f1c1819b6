"""The producer underneath: one of librdkafka's, handed over or made from a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from confluent_kafka import KafkaError, Message, Producer

from delayservice.base.errors import KafkaEdgeError

DeliveryCallback: TypeAlias = Callable[[KafkaError | None, Message], None]

ANY_PARTITION: Final = -1
"""librdkafka's word for: the partitioner decides."""

DEFAULTS: Final[Mapping[str, Any]] = {
    "partitioner": "murmur2_random",  # a Java producer's choice; librdkafka's own is another
    "enable.idempotence": True,  # else a retry of the client may write a record twice
}
"""What a producer is made with, unless the configuration says otherwise."""


class ProducerClient:
    """Batching, compression, transactions and delivery reports are the producer's own.

    As safe to share between threads as the producer is.

    Args:
        producer: a producer, used as it is, or the configuration of one, completed with
            ``DEFAULTS``.
        close_timeout_s: how long the end of a ``with`` block waits for acknowledgements.
    """

    def __init__(
        self, producer: Producer | Mapping[str, Any], *, close_timeout_s: float = 30.0
    ) -> None:
        self.producer = (
            Producer({**DEFAULTS, **producer}) if isinstance(producer, Mapping) else producer
        )
        self._close_timeout_s = close_timeout_s

    def poll(self, timeout_s: float = 0.0) -> int:
        """Serve delivery reports; call it now and then. Returns how many there were."""
        return self.producer.poll(timeout_s)

    def flush(self, timeout_s: float = -1.0) -> int:
        """Wait until everything is acknowledged or given up; -1: as long as that takes.

        Returns:
            How many records are still on their way.
        """
        return self.producer.flush(timeout_s)

    def __len__(self) -> int:
        """Records on their way, and delivery reports not served yet."""
        return len(self.producer)

    def __bool__(self) -> bool:
        """A client with nothing on its way is a client all the same."""
        return True

    def __enter__(self) -> Self:
        """Use it as it is."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Flush.

        Raises:
            KafkaEdgeError: records are left without an acknowledgement; when an error ends the
                block, it gets a note instead.
        """
        left = self.flush(self._close_timeout_s)
        if not left:
            return
        text = f"{left} records were not acknowledged within {self._close_timeout_s:g} s"
        if error is None:
            raise KafkaEdgeError(f"{text}; they may or may not be at the broker")
        error.add_note(text)
