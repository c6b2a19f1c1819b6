"""``RetryLadder``: redelivers records that a consumer could not handle, with growing delays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from confluent_kafka import KafkaError, Message

from connectors.kafka.client.producer import DelayProducer
from connectors.kafka.client.received import (
    RETRY_ERROR,
    RETRY_SOURCE,
    all_headers,
    own_headers,
    source_of,
)
from delayservice.base.errors import InvalidRequestError, KafkaEdgeError
from delayservice.contract.backoff import backoff_of
from delayservice.contract.codes import printable
from delayservice.contract.levels import ROCKETMQ_LEVELS_MS
from delayservice.contract.names import is_legal_topic, is_reserved
from delayservice.contract.request import Delay, delay_ms

RETRY_DELAYS_MS: Final = ROCKETMQ_LEVELS_MS[2:]
"""RocketMQ's sixteen retry delays of consumers, ms: 10s 30s 1m…10m 20m 30m 1h 2h."""


class RetryLadder:
    """Redelivers records that a consumer group failed to handle: to its retry topic, after a delay
    for each failure. After all delays the service dead-letters them as ``retries-exhausted``.

    The consumers read ``retry_topic`` beside their own topics. It must exist, and the delay topic
    must allow it as a target. Not thread-safe.

    To lose nothing, commit the offset of a failed record only after ``confirm``, or in the same
    transaction: with a transactional producer, the record is sent in the transaction that the
    caller has begun, and ``confirm`` is not needed.

    Args:
        group: the consumer group.
        producer: the producer of the records.
        delays: the delays after the first, second and further failures of a record.
        retry_topic: the topic of redelivered records; None: ``retry_<group>``.

    Raises:
        InvalidRequestError: ``delays`` is empty, or a delay or the topic's name is invalid.
    """

    def __init__(
        self,
        group: str,
        producer: DelayProducer,
        *,
        delays: Sequence[Delay] = RETRY_DELAYS_MS,
        retry_topic: str | None = None,
    ) -> None:
        if not delays:
            raise InvalidRequestError("delays is empty: a ladder has one step or more")
        self.retry_topic = retry_topic or f"retry_{group}"
        if not is_legal_topic(self.retry_topic) or is_reserved(self.retry_topic):
            raise InvalidRequestError(f"{self.retry_topic!r} is no legal topic name, or reserved")
        self._delays_ms = tuple(delay_ms("delays", delay) for delay in delays)
        self._producer = producer
        self._refused: KafkaError | None = None

    def retries(self, message: Message) -> int:
        """Return how often a record has failed before; 0 if it was not read from the retry topic.

        So a record that is written to its original topic again gets the first delay again.
        """
        backoff = backoff_of(all_headers(message)) if message.topic() == self.retry_topic else None
        return 0 if backoff is None else backoff.retries

    def failed(self, message: Message, error: BaseException) -> int:
        """Send a failed record to the delay topic, which delivers it to the retry topic later or,
        after all delays, dead-letters it.

        The record keeps its key, its value, and the headers of its producer. The headers
        ``retry-source`` (``source_of``) and ``retry-error`` are added.

        Returns:
            The number of its failures, this one included. The record is at the broker only after
            ``confirm`` or the commit of the transaction.

        Raises:
            BufferError, KafkaException: as by ``Producer.produce``; the record was not sent.
        """
        retries = self.retries(message)
        reason = printable(f"{type(error).__name__}: {error}")
        self._producer.send(
            self.retry_topic,
            message.value(),
            key=message.key(),
            backoff=self._delays_ms,
            retries=retries,
            headers=[
                *own_headers(message),
                (RETRY_SOURCE, source_of(message)),
                (RETRY_ERROR, reason),
            ],
            on_delivery=self._reported,
        )
        return retries + 1

    def confirm(self, timeout_s: float = 30.0) -> None:
        """Wait up to ``timeout_s`` until the broker has all records that ``failed`` sent. After
        that, the caller may commit offsets.

        Raises:
            KafkaEdgeError: a record was not acknowledged; the caller must commit no offsets. If the
                broker refused it, every later call raises too, so that no later offset is committed
                by mistake. End the consumer then, and begin again at the committed offsets.
        """
        left = self._producer.flush(timeout_s)
        if self._refused is None and left:
            raise KafkaEdgeError(
                f"{left} records were not acknowledged within {timeout_s:g} s: commit no offsets"
            )
        if self._refused is not None:
            raise KafkaEdgeError(
                f"a failed record could not be handed over: {self._refused.str()}; commit no "
                "offsets, and begin again at the committed ones"
            )

    def _reported(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._refused = self._refused or error
