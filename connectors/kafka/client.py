"""Former name of the client library, which is the package ``kafka_delay_client``."""

try:
    from kafka_delay_client import (
        NO_KEY,
        RETRY_DELAYS_MS,
        Deduplicator,
        DelayProducer,
        HandedOver,
        InvalidRequestError,
        LevelProducer,
        LruSeen,
        OutcomeReader,
        RetryLadder,
        SeenStore,
        own_headers,
        source_of,
    )
except ModuleNotFoundError as exc:
    raise ModuleNotFoundError(
        "connectors.kafka.client is the package kafka_delay_client, which the service does not "
        "bring along: install the wheel kafka_delay_client beside the service's",
        name=exc.name,
    ) from exc

__all__ = [
    "NO_KEY",
    "RETRY_DELAYS_MS",
    "Deduplicator",
    "DelayProducer",
    "HandedOver",
    "InvalidRequestError",
    "LevelProducer",
    "LruSeen",
    "OutcomeReader",
    "RetryLadder",
    "SeenStore",
    "own_headers",
    "source_of",
]
