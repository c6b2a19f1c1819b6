"""Sends commands about copies to the nodes and reads their reports; counterpart of ``copies``."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from connectors.kafka.clients import (
    admin_client,
    consumer_client,
    flush,
    producer_client,
    values_of,
)
from connectors.kafka.log_ends import ASK_TIMEOUT_S, watermarks
from connectors.kafka.scan import consumer_config
from delayservice.base.errors import KafkaEdgeError
from delayservice.replicas.commands import Command, Report, decode_message, encode_message

_WAIT_S: Final = 0.2


class RepairDesk:
    """A client that writes commands about copies and waits for the nodes' reports."""

    def __init__(
        self, client: Mapping[str, str], topic: str, stop: threading.Event | None = None
    ) -> None:
        self._client = client
        self._topic = topic
        self._stop = stop or threading.Event()

    def ask(self, commands: Sequence[Command], timeout_s: float) -> Iterator[Report]:
        """Write ``commands`` and yield the nodes' reports on them as they come, until each command
        has one, ``timeout_s`` seconds are over, or ``stop`` is set.
        """
        open_steps = {(command.plan, command.step) for command in commands}
        consumer = consumer_client(consumer_config(self._client, "repair-desk"))
        try:
            _, end = watermarks(consumer, (self._topic, 0))
            consumer.assign([TopicPartition(self._topic, 0, end)])
            self.send(commands)
            deadline_s = time.monotonic() + timeout_s
            while open_steps and time.monotonic() < deadline_s and not self._stop.is_set():
                for value in values_of(consumer.consume(1_000, _WAIT_S)):
                    said = decode_message(value)
                    if isinstance(said, Report) and (said.plan, said.step) in open_steps:
                        open_steps.discard((said.plan, said.step))
                        yield said
        except KafkaException as exc:
            raise self._unusable(exc) from exc
        finally:
            consumer.close()

    def _unusable(self, exc: KafkaException) -> KafkaEdgeError:
        return KafkaEdgeError(
            f"topic {self._topic} can't be used: {exc}; digests must be enabled on the nodes, "
            "and the repairing user needs Read and Write on it"
        )

    def send(self, commands: Sequence[Command]) -> None:
        failed: list[KafkaError] = []

        def report(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                failed.append(error)

        producer = producer_client({**self._client, "enable.idempotence": True})
        for command in commands:
            value = encode_message(command)
            producer.produce(self._topic, value, command.plan.encode(), on_delivery=report)
            producer.poll(0)
        if flush(producer, ASK_TIMEOUT_S) or failed:
            timed_out = KafkaError(KafkaError._TIMED_OUT)  # noqa: SLF001 (its public name)
            raise self._unusable(KafkaException(failed[0] if failed else timed_out))


def cluster_id(client: Mapping[str, str]) -> str:
    admin = admin_client(client)
    try:
        return str(admin.list_topics(timeout=ASK_TIMEOUT_S).cluster_id)
    except KafkaException as exc:
        raise KafkaEdgeError(f"the cluster does not say its id: {admin.explain(exc)}") from exc
