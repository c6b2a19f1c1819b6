"""Writes control records (cancel, fire, replace) into delay topics, and makes readers of their
outcomes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from connectors.kafka.clients import consumer_client, producer_client
from connectors.kafka.errors import error_of
from connectors.kafka.log_ends import ASK_TIMEOUT_S, log_bounds
from connectors.kafka.outcomes import Outcomes, RecordPlace
from connectors.kafka.scan import consumer_config
from delayservice.base.errors import KafkaEdgeError
from delayservice.contract.names import Header

# Longest wait for the broker's confirmation of a record, in s; the client then drops it.
CONFIRM_S: Final = 15.0
_POLL_S: Final = 0.2
# Extra wait for the client's delivery report, in s: the client looks for expired records once a
# second.
_REPORT_S: Final = 5.0


_NO_REPORT: Final = KafkaError(KafkaError._MSG_TIMED_OUT)  # noqa: SLF001 (its public name)


class ControlClient:
    """Client that writes control records and makes readers of their outcomes, for any thread."""

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
        return self._stopping.is_set()

    def stop(self) -> None:
        # Written control records take effect all the same.
        self._stopping.set()

    def partitions(self, topic: str) -> int:
        # 0: the topic can't be described, for example because it does not exist.
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
    ) -> RecordPlace:
        """Write one record, wait up to 20 s for the broker's confirmation, and return the record's
        place. ``KafkaEdgeError``: the broker refuses it; or it does not answer, so it is unknown
        whether the record was written.
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
            return RecordPlace(topic, partition, int(message.offset() or 0))
        raise self._refused(producer, f"{topic}:{partition}", error or _NO_REPORT)

    def _refused(self, producer: Producer, where: str, error: KafkaError) -> KafkaEdgeError:
        with self._lock:  # after a fatal error, the next request makes a new one
            if error.fatal() and self._producer is producer:
                self._producer = None
        if error.code() == _NO_REPORT.code():
            return KafkaEdgeError(
                f"{where} was not confirmed within {CONFIRM_S:g} s; it may be written all the "
                "same: look at the record again before you repeat it"
            )
        return KafkaEdgeError(f"{where} can't be written: {error.str()}")

    def _ready_producer(self) -> Producer:
        with self._lock:
            if self._producer is None:
                self._producer = producer_client(self._options)
            return self._producer

    def listen(self) -> Outcomes:
        """Return a reader of outcomes that are written from now on; call it before ``write``."""
        ends = [
            log_bounds(self._admin, self._outcomes, n).end
            for n in range(self.partitions(self._outcomes))
        ]
        consumer = consumer_client(self._consumer_config)
        return Outcomes(consumer, self._outcomes, ends, self._stopping)
