"""How clients of librdkafka are made, so that all of them log the same way."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

LOGGER: Final = logging.getLogger("librdkafka")
"""Without it librdkafka writes to standard error by itself."""


def admin_client(options: Mapping[str, str]) -> AdminClient:
    """An admin client."""
    return AdminClient(dict(options), logger=LOGGER)


def consumer_client(options: Mapping[str, Any]) -> Consumer:
    """A consumer, not assigned to anything."""
    return Consumer(dict(options), logger=LOGGER)


def producer_client(options: Mapping[str, Any]) -> Producer:
    """A producer; a transactional one is not initialised yet."""
    return Producer(dict(options), logger=LOGGER)


def flush(producer: Producer, timeout_s: float) -> int:
    """Wait until everything is sent or the time is over; how many records are left.

    The client raises its fatal error while reports of what failed with it are still to come, and
    Python takes the first of those for a mistake of the client's: ``SystemError``.

    Raises:
        KafkaException: the producer is fenced, or otherwise of no use any more.
    """
    try:
        return producer.flush(timeout_s)
    except SystemError as exc:
        cause: BaseException | None = exc
        while cause is not None and not isinstance(cause, KafkaException):
            cause = cause.__cause__
        if cause is None:
            raise
        raise cause from None
