"""Write a cancel, a fire or a replacement into the log, and hear from the log what it did."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from connectors.kafka.clients import consumer_client, producer_client
from connectors.kafka.source import ASK_TIMEOUT_S, consumer_config, log_bounds
from delayservice.core.codec import Header
from delayservice.core.names import DELAY_OUTCOME, DELAY_SETTLED_BY, DELAY_SETTLES, DELAY_SHARD
from delayservice.errors import KafkaEdgeError

_POLL_S: Final = 0.2


class Place(NamedTuple):
    """Where a record is."""

    topic: str
    partition: int
    offset: int


class ControlDesk:
    """Any thread may use it.

    Args:
        producer: options of a producer.
        consumer: options of a consumer.
        admin: asks where logs end.
        outcomes: the outcomes topic.
    """

    def __init__(
        self,
        producer: Mapping[str, str],
        consumer: Mapping[str, str],
        admin: AdminClient,
        outcomes: str,
    ) -> None:
        self._options: dict[str, Any] = {**producer, "enable.idempotence": True, "linger.ms": 0}
        self._consumer_config = consumer_config(consumer, "control-desk")
        self._admin = admin
        self._outcomes = outcomes
        self._lock = threading.Lock()
        self._producer: Producer | None = None

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has; 0: there is none of this name.

        Raises:
            KafkaEdgeError: the cluster does not answer.
        """
        try:
            found = self._admin.list_topics(topic, timeout=ASK_TIMEOUT_S).topics.get(topic)
        except KafkaException as exc:
            raise KafkaEdgeError(f"the partitions of {topic} can't be asked: {exc}") from exc
        return 0 if found is None or found.error is not None else len(found.partitions)

    def write(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
    ) -> Place:
        """Write one record, and wait until the broker has it.

        Raises:
            KafkaEdgeError: the broker refuses it, or does not answer: then nobody knows whether it
                was written.
        """
        reports: list[tuple[KafkaError | None, Message]] = []
        producer = self._ready_producer()
        try:
            producer.produce(
                topic,
                value,
                key,
                partition,
                on_delivery=lambda error, message: reports.append((error, message)),
                headers=list(headers),
            )
            deadline_s = time.monotonic() + ASK_TIMEOUT_S
            while not reports and time.monotonic() < deadline_s:
                producer.poll(_POLL_S)
        except (KafkaException, BufferError) as exc:
            raise KafkaEdgeError(f"{topic}:{partition} can't be written: {exc}") from exc
        if not reports:
            raise KafkaEdgeError(
                f"{topic}:{partition} was not confirmed within {ASK_TIMEOUT_S:g} s; it may be "
                "written yet: look at the record again before you repeat it"
            )
        error, message = reports[0]
        if error is not None:
            raise KafkaEdgeError(f"{topic}:{partition} can't be written: {error.str()}")
        return Place(topic, partition, int(message.offset() or 0))

    def _ready_producer(self) -> Producer:
        with self._lock:
            if self._producer is None:
                self._producer = producer_client(self._options)
            return self._producer

    def listen(self) -> Outcomes:
        """Hear the outcomes that are written from now on: to be called before ``write``.

        Raises:
            KafkaEdgeError: the outcomes topic can't be asked.
        """
        places = [
            TopicPartition(self._outcomes, n, log_bounds(self._admin, self._outcomes, n).end)
            for n in range(self.partitions(self._outcomes))
        ]
        consumer = consumer_client(self._consumer_config)
        consumer.assign(places)
        return Outcomes(consumer, self._outcomes)


class Outcomes:
    """The outcomes topic from some point on; a context that lets go of its connections."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self._consumer = consumer
        self._topic = topic

    def __enter__(self) -> Self:
        """Listen."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go."""
        self._consumer.close()

    def of(self, control: Place, timeout_s: float, *, replaces: bool) -> str | None:
        """What a control did: the name of its outcome; None: nothing is known in time.

        Args:
            control: where it was written.
            timeout_s: how long to wait.
            replaces: it is a schedule, which has no outcome of its own but that of what it
                replaces.

        Raises:
            KafkaEdgeError: the topic can't be read.
        """
        shard = f"{control.topic}:{control.partition}".encode()
        told_by = DELAY_SETTLED_BY if replaces else DELAY_SETTLES
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            for headers in self._headers():
                named = dict(headers)
                if named.get(DELAY_SHARD) == shard and named.get(told_by) == b"%d" % control.offset:
                    return (named.get(DELAY_OUTCOME) or b"").decode()
        return None

    def _headers(self) -> Iterator[list[Header]]:
        message = self._consumer.poll(_POLL_S)
        if message is None:
            return
        error = message.error()
        if error is None:
            yield list(message.headers() or [])  # type: ignore[arg-type]  # its stubs allow dicts
        elif error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 (its public name)
            raise KafkaEdgeError(f"{self._topic} can't be read: {error.str()}")
