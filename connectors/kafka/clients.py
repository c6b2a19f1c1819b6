"""How clients of librdkafka are made, so that all of them log the same way."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Consumer, Producer
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
