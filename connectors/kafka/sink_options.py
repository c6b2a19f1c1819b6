"""Settings of a worker's sink, and the options of its producers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from connectors.kafka.topic_terms import BATCH_BYTES

UNKNOWN_AFTER_MS: Final = 1_500
"""Time for which the client retries a target topic that has disappeared, in ms."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Settings of a worker's sink."""

    name_prefix: str
    """Prefix of the transactional ids: the service's prefix, the node and the worker."""
    checkpoint_topic: str
    claims_topic: str
    checkpoint_partition: Callable[[int], int]
    """Function from a slice to its partition of the checkpoint topic."""
    exactly_once: bool
    partitioner: str
    client: Mapping[str, str]
    """librdkafka options from the settings, bootstrap servers included."""

    def transactional(self, writer: str) -> dict[str, str | int | float | bool]:
        """Return the options of the transactional producer ``writer``."""
        return {
            "linger.ms": 5,
            **self._common(),
            "transactional.id": writer,
            "transaction.timeout.ms": 45_000,
        }

    def idempotent(self) -> dict[str, str | int | float | bool]:
        """Return the options of the producer that writes target records at least once."""
        return {"linger.ms": 1, **self._common(), "enable.idempotence": True}

    def _common(self) -> dict[str, str | int | float | bool]:
        return {
            "batch.num.messages": 10_000,
            "batch.size": BATCH_BYTES,
            "message.max.bytes": 16 * 1024 * 1024,  # the topic decides, not the client
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 65_536,  # large values must not pile up here
            "message.timeout.ms": 40_000,
            "topic.metadata.propagation.max.ms": UNKNOWN_AFTER_MS,
            "delivery.report.only.error": True,
            **self.client,
            "partitioner": self.partitioner,
            "acks": "all",
        }
