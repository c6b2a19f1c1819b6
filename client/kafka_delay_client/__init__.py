"""Client of the Kafka delay service: delayed records, and retries and idempotence for consumers.

The service needs only a record with headers (``docs/header-contract.md``). This package writes
those headers, checks them before anything is sent, and finds the partition of an id. It needs
confluent-kafka. Its wheel carries the modules of the header contract that it needs (``setup.py``).
"""

from delayservice.base.errors import InvalidRequestError, KafkaEdgeError
from delayservice.contract.levels import DEFAULT_LEVELS_MS, ROCKETMQ_LEVELS_MS
from delayservice.contract.request import NO_KEY
from kafka_delay_client.answers import OutcomeReader
from kafka_delay_client.dedupe import Deduplicator, LruSeen, SeenStore
from kafka_delay_client.ladder import RETRY_DELAYS_MS, HandedOver, RetryLadder
from kafka_delay_client.levels import LevelProducer
from kafka_delay_client.producer import DelayProducer
from kafka_delay_client.received import own_headers, source_of

__all__ = [
    "DEFAULT_LEVELS_MS",
    "NO_KEY",
    "RETRY_DELAYS_MS",
    "ROCKETMQ_LEVELS_MS",
    "Deduplicator",
    "DelayProducer",
    "HandedOver",
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
