"""Measures the time of a broker, for a worker that owns no slice.

An owner compares its clock with the broker's timestamps of the checkpoints that it commits. A
worker without a slice writes a tombstone into the claims topic, which has ``LogAppendTime``. Its
key names a writer that never existed: every version of the service ignores it, and compaction
removes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import structlog
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message, Producer

from connectors.kafka.clients import connect, producer_client
from delayservice.engine.claims import encode_key

_ANSWER_S: Final = 2.0

_log = structlog.get_logger(__name__)


class BrokerClock:
    """Client that writes a record to get a broker's timestamp; for one thread."""

    def __init__(
        self,
        client: Mapping[str, str],
        claims_topic: str,
        name: str,
        # Called with the broker's timestamp, epoch milliseconds, and the times at which the record
        # was sent and acknowledged, monotonic seconds.
        heard: Callable[[int, float, float], None],
        make: Callable[[Mapping[str, Any]], Producer] = producer_client,
    ) -> None:
        self._options = {**client, "acks": "all", "linger.ms": 0, "message.timeout.ms": 2_000}
        self._topic = claims_topic
        self._key = encode_key(0, f"clock-{name}")
        self._heard = heard
        self._make = make
        self._producer: Producer | None = None

    def ask(self) -> None:
        """Write one record and wait up to 2 s for its acknowledgement; then call ``heard``, unless
        that failed or the producer set the timestamp.
        """
        try:
            if self._producer is None:
                self._producer = self._make(self._options)
                # Connect first: otherwise the first answer is too slow to compare clocks by.
                connect(self._producer, self._topic, _ANSWER_S)
            # Each answer with the time of its own record: a late one comes during the next flush.
            answered = partial(self._answered, time.monotonic())
            self._producer.produce(
                self._topic, key=self._key, value=None, partition=0, on_delivery=answered
            )
            self._producer.flush(_ANSWER_S)
        except (KafkaException, BufferError) as exc:
            _log.debug("broker_not_asked_for_the_time", why=str(exc))

    def close(self) -> None:
        self._producer = None

    def _answered(self, sent_s: float, error: KafkaError | None, message: Message) -> None:
        answered_s = time.monotonic()
        if error is not None:
            _log.debug("broker_not_asked_for_the_time", why=error.str())
            return
        kind, broker_ms = message.timestamp()
        if kind == TIMESTAMP_LOG_APPEND_TIME:
            self._heard(broker_ms, sent_s, answered_s)
