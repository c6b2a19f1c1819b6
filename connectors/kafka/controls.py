"""Write a cancel, a fire or a replacement into the log, and hear from the log what it did."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from connectors.kafka.clients import NO_RECORDS, consumer_client, producer_client
from connectors.kafka.errors import error_of
from connectors.kafka.log_ends import ASK_TIMEOUT_S, log_bounds
from connectors.kafka.source import consumer_config
from delayservice.core.codec import Header
from delayservice.core.names import DELAY_OUTCOME, DELAY_SETTLED_BY, DELAY_SETTLES, DELAY_SHARD
from delayservice.errors import KafkaEdgeError

CONFIRM_S: Final = 15.0
"""How long a record may take to be confirmed; the client gives it up then as well."""
_POLL_S: Final = 0.2
_REPORT_S: Final = 5.0
"""The client looks for what it has to give up about once a second."""


_NO_REPORT: Final = KafkaError(KafkaError._MSG_TIMED_OUT)  # noqa: SLF001 (its public name)


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
        self._options: dict[str, Any] = {
            **producer,
            "enable.idempotence": True,
            "linger.ms": 0,
            "message.timeout.ms": round(CONFIRM_S * 1_000),
        }
        self._consumer_config = consumer_config(consumer, "control-desk")
        self._admin = admin
        self._outcomes = outcomes
        self._lock = threading.Lock()
        self._producer: Producer | None = None
        self._stopping = threading.Event()

    @property
    def is_stopping(self) -> bool:
        """Whether nobody waits for outcomes any more."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """End every wait for an outcome: what is written takes effect without anybody waiting."""
        self._stopping.set()

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
            deadline_s = time.monotonic() + CONFIRM_S + _REPORT_S
            while not reports and time.monotonic() < deadline_s:
                producer.poll(_POLL_S)
        except BufferError as exc:
            raise KafkaEdgeError(f"{topic}:{partition} can't be written: {exc}") from exc
        except KafkaException as exc:
            raise self._refused(producer, f"{topic}:{partition}", error_of(exc)) from exc
        error, message = reports[0] if reports else (_NO_REPORT, None)
        if error is None and message is not None:
            return Place(topic, partition, int(message.offset() or 0))
        raise self._refused(producer, f"{topic}:{partition}", error or _NO_REPORT)

    def _refused(self, producer: Producer, where: str, error: KafkaError) -> KafkaEdgeError:
        self._discard_if_fatal(producer, error)
        if error.code() == _NO_REPORT.code():
            return KafkaEdgeError(
                f"{where} was not confirmed within {CONFIRM_S:g} s; it may be written all the "
                "same: look at the record again before you repeat it"
            )
        return KafkaEdgeError(f"{where} can't be written: {error.str()}")

    def _discard_if_fatal(self, producer: Producer, error: KafkaError) -> None:
        """The client does nothing more after such an error: the next request makes a new one."""
        if not error.fatal():
            return
        with self._lock:
            if self._producer is producer:
                self._producer = None

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
        return Outcomes(consumer, self._outcomes, self._stopping)


class Outcomes:
    """The outcomes topic from some point on; a context that lets go of its connections."""

    def __init__(self, consumer: Consumer, topic: str, stopping: threading.Event) -> None:
        self._consumer = consumer
        self._topic = topic
        self._stopping = stopping

    def __enter__(self) -> Self:
        """Listen."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go."""
        self._consumer.close()

    def of(
        self, controls: Collection[Place], timeout_s: float, *, replaces: bool
    ) -> dict[Place, str]:
        """What controls did: the names of their outcomes; of those that are known in time.

        Args:
            controls: where they were written.
            timeout_s: how long to wait for all of them together.
            replaces: they are schedules, which have no outcome of their own but that of what they
                replace.

        Raises:
            KafkaEdgeError: the topic can't be read.
        """
        wanted = {
            (f"{one.topic}:{one.partition}".encode(), b"%d" % one.offset): one for one in controls
        }
        told_by = DELAY_SETTLED_BY if replaces else DELAY_SETTLES
        found: dict[Place, str] = {}
        deadline_s = time.monotonic() + timeout_s
        while (
            len(found) < len(wanted)
            and time.monotonic() < deadline_s
            and not self._stopping.is_set()
        ):
            for headers in self._headers():
                named = dict(headers)
                control = wanted.get((named.get(DELAY_SHARD) or b"", named.get(told_by) or b""))
                if control is not None:
                    found[control] = (named.get(DELAY_OUTCOME) or b"").decode()
        return found

    def _headers(self) -> Iterator[list[Header]]:
        message = self._consumer.poll(_POLL_S)
        if message is None:
            return
        error = message.error()
        if error is None:
            yield list(message.headers() or [])  # type: ignore[arg-type]  # its stubs allow dicts
        elif error.code() not in NO_RECORDS:
            raise KafkaEdgeError(f"{self._topic} can't be read: {error.str()}")
