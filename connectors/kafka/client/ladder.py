"""``RetryLadder``: redelivers records that a consumer could not handle, with growing delays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from confluent_kafka import KafkaError, Message

from connectors.kafka.client.levels import LevelProducer
from connectors.kafka.client.producer import DelayProducer
from connectors.kafka.client.received import (
    RETRY_SOURCE,
    all_headers,
    last_header,
    own_headers,
    source_of,
)
from delayservice.base.errors import InvalidRequestError, KafkaEdgeError
from delayservice.contract.codes import printable
from delayservice.contract.levels import ROCKETMQ_LEVELS_MS
from delayservice.contract.names import is_legal_topic, is_reserved
from delayservice.contract.request import Delay, Header, delay_ms
from delayservice.contract.times import parse_count

RETRY_DELAYS_MS: Final = ROCKETMQ_LEVELS_MS[2:]
"""RocketMQ's sixteen retry delays of consumers, ms: 10s 30s 1m…10m 20m 30m 1h 2h."""

RETRY_ATTEMPT: Final = "retry-attempt"
RETRY_TOPIC: Final = "retry-original-topic"
RETRY_ERROR: Final = "retry-error"

_ADDED: Final = frozenset({RETRY_ATTEMPT, RETRY_SOURCE, RETRY_TOPIC, RETRY_ERROR})


class HandedOver(NamedTuple):
    """Topic to which a failed record was sent.

    Attributes:
        attempt: number of the record's failures, this one included.
        topic: the retry topic or the dead-letter topic.
        delay_ms: delay before the record is delivered to the retry topic, ms (a level may be
            longer); None: ``topic`` is the dead-letter topic.
    """

    attempt: int
    topic: str
    delay_ms: int | None


class RetryLadder:
    """Redelivers records that a consumer group failed to handle: to its retry topic, after a delay
    for each failure, and after all delays to a dead-letter topic.

    The consumers read ``retry_topic`` beside their own topics. The retry topic and the dead-letter
    topic must exist, and the delay topic must allow ``retry_topic`` as a target. Not thread-safe.

    To lose nothing, commit the offset of a failed record only after ``confirm``, or in the same
    transaction: with a transactional producer, the record is sent in the transaction that the
    caller has begun, and ``confirm`` is not needed.

    Args:
        group: the consumer group.
        producer: the producer of the records. A ``LevelProducer`` rounds each delay up to a level;
            RocketMQ's levels contain the default delays exactly.
        delays: the delays after the first, second and further failures of a record.
        retry_topic: the topic of redelivered records; None: ``retry_<group>``.
        dead_letter_topic: the topic for records that fail after the last delay; None:
            ``dead_letter_<group>``. Names that begin with ``delay_`` are reserved.

    Raises:
        InvalidRequestError: ``delays`` is empty, or a delay or topic name is invalid.
    """

    def __init__(
        self,
        group: str,
        producer: DelayProducer | LevelProducer,
        *,
        delays: Sequence[Delay] = RETRY_DELAYS_MS,
        retry_topic: str | None = None,
        dead_letter_topic: str | None = None,
    ) -> None:
        if not delays:
            raise InvalidRequestError("delays is empty: a ladder has one step or more")
        self.retry_topic = retry_topic or f"retry_{group}"
        self.dead_letter_topic = dead_letter_topic or f"dead_letter_{group}"
        for topic in (self.retry_topic, self.dead_letter_topic):
            if not is_legal_topic(topic) or is_reserved(topic):
                raise InvalidRequestError(f"{topic!r} is no legal topic name, or reserved")
        self._delays_ms = tuple(delay_ms("delays", delay) for delay in delays)
        self._producer = producer
        self._refused: KafkaError | None = None

    def attempts(self, message: Message) -> int:
        """Return how often a record has failed before; 0 if it was not read from the retry topic.

        So a dead letter that is written back to its original topic gets the first delay again.
        """
        if message.topic() != self.retry_topic:
            return 0
        text = last_header(all_headers(message), RETRY_ATTEMPT)
        return parse_count(RETRY_ATTEMPT, text) if text is not None and text.isdigit() else 0

    def failed(self, message: Message, error: BaseException) -> HandedOver:
        """Send a failed record to the retry topic, or after all delays to the dead-letter topic.

        The record keeps its key, its value, and the headers of its producer. The headers
        ``retry-attempt``, ``retry-source``, ``retry-original-topic`` and ``retry-error`` are added.

        Returns:
            The topic, the delay and the number of failures. The record is at the broker only after
            ``confirm`` or the commit of the transaction.

        Raises:
            BufferError, KafkaException: as by ``Producer.produce``; the record was not sent.
        """
        attempt = self.attempts(message) + 1
        headers = self._headers(message, attempt, error)
        if attempt > len(self._delays_ms):
            self._producer.producer.produce(
                self.dead_letter_topic,
                message.value(),
                message.key(),
                on_delivery=self._reported,
                headers=headers,
            )
            return HandedOver(attempt, self.dead_letter_topic, None)
        step_ms = self._delays_ms[attempt - 1]
        self._producer.send(
            self.retry_topic,
            message.value(),
            key=message.key(),
            delay=step_ms,
            headers=headers,
            on_delivery=self._reported,
        )
        return HandedOver(attempt, self.retry_topic, step_ms)

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

    def _headers(self, message: Message, attempt: int, error: BaseException) -> list[Header]:
        origin = last_header(all_headers(message), RETRY_TOPIC) if attempt > 1 else None
        reason = printable(f"{type(error).__name__}: {error}")
        kept: list[Header] = [h for h in own_headers(message) if h[0] not in _ADDED]
        return [
            *kept,
            (RETRY_ATTEMPT, str(attempt)),
            (RETRY_SOURCE, source_of(message)),
            (RETRY_TOPIC, origin or message.topic()),
            (RETRY_ERROR, reason),
        ]

    def _reported(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._refused = self._refused or error
