"""Settings of a worker's sink, which writes its outputs to Kafka; options of its producers; and how
a writer begins and ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer

from connectors.kafka.clients import RECONNECT_MS_MAX, connect
from connectors.kafka.errors import FENCED, error_of
from connectors.kafka.topic_terms import BATCH_BYTES, RECORD_BYTES_MAX
from delayservice.base.errors import KafkaEdgeError, OwnershipLostError

INIT_TIMEOUT_S: Final = 20.0
CONNECT_TIMEOUT_S: Final = 5.0

# Time for which the client retries a target topic that has disappeared, in ms.
UNKNOWN_AFTER_MS: Final = 1_500


@dataclass(frozen=True, slots=True)
class SinkOptions:
    # Prefix of the transactional ids: the service's prefix, the node and the worker.
    name_prefix: str
    checkpoint_topic: str
    claims_topic: str
    checkpoint_partition: Callable[[int], int]
    exactly_once: bool
    partitioner: str
    # librdkafka options from the settings, bootstrap servers included.
    client: Mapping[str, str]

    def transactional(self, writer: str) -> dict[str, str | int | float | bool]:
        return {
            "linger.ms": 5,
            **self._common(),
            "transactional.id": writer,
            "transaction.timeout.ms": 45_000,
        }

    def idempotent(self) -> dict[str, str | int | float | bool]:
        return {"linger.ms": 1, **self._common(), "enable.idempotence": True}

    def _common(self) -> dict[str, str | int | float | bool]:
        return {
            "batch.num.messages": 10_000,
            "batch.size": BATCH_BYTES,
            "message.max.bytes": RECORD_BYTES_MAX,  # the topic decides, not the client
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 65_536,  # large values must not pile up here
            "message.timeout.ms": 40_000,
            "reconnect.backoff.max.ms": RECONNECT_MS_MAX,
            "topic.metadata.propagation.max.ms": UNKNOWN_AFTER_MS,
            "delivery.report.only.error": True,
            **self.client,
            "partitioner": self.partitioner,
            "acks": "all",
        }


def initialise(producer: Producer, writer: str, options: SinkOptions) -> None:
    connect(producer, options.checkpoint_topic, CONNECT_TIMEOUT_S)
    try:
        producer.init_transactions(INIT_TIMEOUT_S)
    except KafkaException as exc:
        error = error_of(exc)
        if error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            raise KafkaEdgeError(
                f"give the service Write on transactional ids that begin with "
                f"{options.name_prefix}: {error.str()}"
            ) from exc
        raise KafkaEdgeError(f"the writer {writer} could not be opened: {error}") from exc


def lost(what: str, exc: KafkaException) -> OwnershipLostError:
    error = error_of(exc)
    return OwnershipLostError(
        f"fenced at {what}: another node has taken over a slice ({error})"
        if error.code() in FENCED
        else f"{what} has no certain result ({error}); the checkpoints are read again"
    )
