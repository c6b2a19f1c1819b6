"""Client of the Kafka delay service: delayed records, and retries and idempotence for consumers.

The service needs only a record with headers (``docs/header-contract.md``). This package writes
those headers, checks them before anything is sent, and finds the partition of an id. Of the service
it imports the header contract only, so the distribution needs no extra for it.
"""

from connectors.kafka.client.answers import OutcomeReader
from connectors.kafka.client.ladder import RETRY_DELAYS_MS, RetryLadder
from connectors.kafka.client.levels import LevelProducer
from connectors.kafka.client.producer import DelayProducer
from connectors.kafka.client.received import (
    Deduplicator,
    LruSeen,
    SeenStore,
    own_headers,
    source_of,
)
from delayservice.base.errors import InvalidRequestError, KafkaEdgeError
from delayservice.contract.levels import DEFAULT_LEVELS_MS, ROCKETMQ_LEVELS_MS
from delayservice.contract.request import NO_KEY

__all__ = [
    "DEFAULT_LEVELS_MS",
    "NO_KEY",
    "RETRY_DELAYS_MS",
    "ROCKETMQ_LEVELS_MS",
    "Deduplicator",
    "DelayProducer",
    "InvalidRequestError",
    "KafkaEdgeError",
    "LevelProducer",
    "LruSeen",
    "OutcomeReader",
    "RetryLadder",
    "SeenStore",
    "own_headers",
    "source_of",
]
