"""``DelayProducer``: records with any delay; cancel, fire and reschedule by id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Unpack
from uuid import uuid4

from confluent_kafka import Producer

from connectors.kafka.client.base import ANY_PARTITION, DeliveryCallback, ProducerClient
from connectors.kafka.client.places import Places
from delayservice.contract import names
from delayservice.contract.input_headers import CANCEL_OP, FIRE_OP
from delayservice.contract.request import (
    OwnHeaders,
    RequestCheck,
    TargetKey,
    Text,
    When,
    id_bytes,
    plain_headers,
    target_headers,
    when_headers,
)

ID_BYTES_MAX: Final = 512
"""Largest size of an id, in bytes; default of the service's setting ``delivery.id_bytes_max``."""


class RecordParts(When, total=False):
    """Keyword arguments of ``DelayProducer.reschedule``, as ``send`` explains them."""

    key: Text | None
    partition: int | None
    target_key: TargetKey
    headers: OwnHeaders


class DelayProducer(ProducerClient):
    """Writes records to a delay topic, to be delivered later.

    All arguments of a call are checked before anything is written. A record with an id goes to the
    partition chosen by murmur2 of the id, where its cancel goes too. For a record without an id,
    the producer's own partitioner chooses by the key.

    ``producer`` and ``close_timeout_s`` are those of ``ProducerClient``.

    Args:
        id_bytes_max: largest size of an id, bytes: the service's setting
            ``delivery.id_bytes_max``.
    """

    def __init__(
        self,
        producer: Producer | Mapping[str, Any],
        delay_topic: str = "delay_topic_any",
        *,
        id_bytes_max: int = ID_BYTES_MAX,
        close_timeout_s: float = 30.0,
    ) -> None:
        super().__init__(producer, close_timeout_s=close_timeout_s)
        self.delay_topic = delay_topic
        self._id_bytes_max = id_bytes_max
        self._check = RequestCheck(delay_topic, id_bytes_max)
        self._places = Places(self.producer, delay_topic)
        self._topics = [self._places]
        self._places.check()  # asks, so that a misspelt topic is known early

    def send(
        self,
        topic: str,
        value: Text | None,
        *,
        key: Text | None = None,
        id: Text | None = None,  # noqa: A002  # the contract's word
        make_id: bool = False,
        if_absent: bool = False,
        partition: int | None = None,
        target_key: TargetKey = None,
        headers: OwnHeaders = (),
        on_delivery: DeliveryCallback | None = None,
        **when: Unpack[When],
    ) -> Text | None:
        """Write a record that is delivered to ``topic`` when it is due; return its id.

        Args:
            topic: the target topic.
            value: delivered byte for byte.
            key: key of the record and of its output, the delivered record.
            id: name by which the record can be cancelled, fired or rescheduled.
            make_id: make a random id if ``id`` is None.
            if_absent: drop the record if one of its id is pending then (outcome ``kept``).
            partition: partition of the target topic; None: chosen by the key of the output.
            target_key: another key for the output, or ``NO_KEY`` for none; None: ``key``.
            headers: headers to deliver with the record.
            on_delivery: callback for the result of the write to the delay topic, as in
                ``Producer.produce``.
            **when: exactly one of ``delay`` and ``at``, or ``every`` or ``cron``; all are explained
                at ``request.when_headers``.

        Raises:
            InvalidRequestError: the service can't fulfil the request; nothing was written.
            KafkaEdgeError: ``id`` is given, the partition count is not known, and the cluster does
                not answer; or it has answered that there is no such delay topic.
            BufferError, KafkaException: as by ``Producer.produce``.
        """
        asked = [
            *plain_headers(headers),
            *when_headers(**when),
            *target_headers(topic, partition, target_key),
        ]
        if id is None and make_id:
            id = str(uuid4())  # noqa: A001  # as above
        record_id = None if id is None else id_bytes(id, self._id_bytes_max)
        if record_id is not None:
            asked.append((names.DELAY_ID, record_id))
        if if_absent:
            asked.append((names.DELAY_IF, b"absent"))
        self._check.check(key, value, asked)
        self._places.check()
        place = ANY_PARTITION if record_id is None else self._places.now(record_id)
        self.producer.produce(
            self.delay_topic, value, key, place, on_delivery=on_delivery, headers=[*asked]
        )
        return id

    def cancel(
        self,
        id: Text,  # noqa: A002  # the contract's word
        *,
        on_delivery: DeliveryCallback | None = None,
    ) -> None:
        """Cancel the pending record of an id. The service writes the outcome to the outcomes
        topic. ``on_delivery`` is called for the write, as in ``Producer.produce``.

        Raises:
            InvalidRequestError, KafkaEdgeError, BufferError, KafkaException: as by ``send``.
        """
        self._control(CANCEL_OP, id, on_delivery)

    def fire(
        self,
        id: Text,  # noqa: A002  # the contract's word
        *,
        on_delivery: DeliveryCallback | None = None,
    ) -> None:
        """Deliver the pending record of an id now. Arguments and errors are those of ``cancel``."""
        self._control(FIRE_OP, id, on_delivery)

    def reschedule(
        self,
        id: Text,  # noqa: A002  # the contract's word
        topic: str,
        value: Text | None,
        *,
        on_delivery: DeliveryCallback | None = None,
        **record: Unpack[RecordParts],
    ) -> None:
        """Replace the pending record of an id by another record.

        Arguments and errors are those of ``send``.
        """
        self.send(topic, value, id=id, on_delivery=on_delivery, **record)

    def _control(
        self,
        operation: str,
        id: Text,  # noqa: A002  # the contract's word
        on_delivery: DeliveryCallback | None,
    ) -> None:
        record_id = id_bytes(id, self._id_bytes_max)
        self.producer.produce(
            self.delay_topic,
            None,
            record_id,
            self._places.now(record_id),
            on_delivery=on_delivery,
            headers=[(names.DELAY_OP, operation), (names.DELAY_ID, record_id)],
        )
