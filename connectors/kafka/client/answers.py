"""``OutcomeReader``: sends a cancel or a fire, and waits for its outcome in the outcomes topic."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, Message

from connectors.kafka.client.base import DeliveryCallback
from connectors.kafka.client.producer import DelayProducer
from connectors.kafka.outcomes import ANSWER_S, Outcomes, place_of, together
from delayservice.base.errors import KafkaEdgeError
from delayservice.contract.request import Text

_FLUSH_S: Final = 0.1


class OutcomeReader:
    """Client that cancels or fires records through a producer, and waits for their outcomes. Each
    call opens and closes a consumer of the outcomes topic. Thread-safe.

    Args:
        consumer: the configuration of a consumer. The reader replaces ``group.id``,
            ``enable.auto.commit``, ``isolation.level``, ``check.crcs`` and
            ``allow.auto.create.topics``.
        outcomes_topic: the service's setting ``topics.outcomes``.
    """

    def __init__(self, consumer: Mapping[str, Any], outcomes_topic: str = "delay_outcomes") -> None:
        self._config = {
            **consumer,
            "group.id": f"outcome-reader-{uuid.uuid4().hex}",  # required, and never joined
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
        self._topic = outcomes_topic

    def cancel(self, producer: DelayProducer, id: Text, timeout_s: float = 5.0) -> str | None:  # noqa: A002  # the contract's word
        """Cancel the pending record of an id, and wait up to ``timeout_s`` for the outcome. Records
        of ``producer`` are flushed until the cancel is acknowledged, for which the call waits up to
        15 s more.

        Returns:
            ``cancelled``; ``not_pending``: no record of the id was pending; None: no outcome was
            read in time, and the cancel still takes effect when the service reads it.

        Raises:
            KafkaEdgeError: the cancel may not have been written, the outcomes topic can't be read,
                the cancel is written, but ``producer`` has the option
                ``delivery.report.only.error``, or as by ``DelayProducer.cancel``.
            InvalidRequestError, BufferError, KafkaException: as by ``DelayProducer.cancel``.
        """
        return self._hear(producer, lambda told: producer.cancel(id, on_delivery=told), timeout_s)

    def fire(self, producer: DelayProducer, id: Text, timeout_s: float = 5.0) -> str | None:  # noqa: A002  # as above
        """Deliver the pending record of an id now, and wait up to ``timeout_s`` for the outcome,
        as ``cancel`` does, with its errors.

        Returns:
            ``fired``; ``not_pending``: no record of the id was pending; None: no outcome was read
            in time, and the fire still takes effect when the service reads it.
        """
        return self._hear(producer, lambda told: producer.fire(id, on_delivery=told), timeout_s)

    def _hear(
        self, producer: DelayProducer, ask: Callable[[DeliveryCallback], None], timeout_s: float
    ) -> str | None:
        deadline_s = time.monotonic() + timeout_s
        reports: list[tuple[KafkaError | None, Message]] = []
        with Outcomes(self._config, self._topic, threading.Event()) as outcomes:
            ask(lambda error, message: reports.append((error, message)))
            # In steps, as other records of the producer may wait for longer than this one. If none
            # waits, and there is no report of this one, there will be none.
            unwritten = 1
            written_by_s = time.monotonic() + max(timeout_s, ANSWER_S)
            while unwritten and not reports and time.monotonic() < written_by_s:
                unwritten = producer.flush(_FLUSH_S)
            failed = [error for error, _ in reports if error is not None]
            if failed or (unwritten and not reports):
                why = failed[0].str() if failed else f"{unwritten} records wait for the broker"
                raise KafkaEdgeError(f"it may not have been written: {why}")
            if not reports:
                raise KafkaEdgeError(
                    "it is written and takes effect, but its outcome can't be found, as the "
                    "producer tells of failures only: leave out its delivery.report.only.error"
                )
            written = [place_of(message) for _, message in reports]
            left_s = max(deadline_s - time.monotonic(), 0.0)
            return together(written, outcomes.of(written, left_s, replaces=False))
