"""Ask the nodes something about their copies, and hear the answers: the other end of ``copies``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from connectors.kafka.clients import consumer_client, flush, producer_client, values_of
from connectors.kafka.log_ends import ASK_TIMEOUT_S
from connectors.kafka.source import consumer_config
from delayservice.core.repair import Command, Detail, Report, decode_message, encode_message
from delayservice.errors import KafkaEdgeError

_WAIT_S: Final = 0.2

Answer = Report | Detail


class RepairDesk:
    """Writes commands and waits for their reports.

    Args:
        client: options of the client, as ``Kafka.client_config`` gives them.
        topic: the repair topic.
    """

    def __init__(self, client: Mapping[str, str], topic: str) -> None:
        self._client = client
        self._topic = topic

    def ask(self, commands: Sequence[Command], timeout_s: float) -> Iterator[Answer]:
        """Write ``commands``, and give their answers as they come, until each has its report or the
        time is over: what has none then was not answered.

        Raises:
            KafkaEdgeError: the topic can't be written or read.
        """
        open_steps = {(command.plan, command.step) for command in commands}
        consumer = consumer_client(consumer_config(self._client, "repair-desk"))
        try:
            self._go_to_end(consumer)
            self._write(commands)
            deadline_s = time.monotonic() + timeout_s
            while open_steps and time.monotonic() < deadline_s:
                for answer in self._answers(consumer):
                    step = (answer.plan, answer.step)
                    if step in open_steps:
                        if isinstance(answer, Report):
                            open_steps.discard(step)
                        yield answer
        except KafkaException as exc:
            raise KafkaEdgeError(
                f"topic {self._topic} can't be used: {exc}; digests must be enabled on the nodes, "
                "and the repairing user needs Read and Write on it"
            ) from exc
        finally:
            consumer.close()

    def _go_to_end(self, consumer: Consumer) -> None:
        place = TopicPartition(self._topic, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=ASK_TIMEOUT_S)
        place.offset = end
        consumer.assign([place])

    def _write(self, commands: Sequence[Command]) -> None:
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
            raise KafkaException(failed[0] if failed else KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001

    @staticmethod
    def _answers(consumer: Consumer) -> Iterator[Answer]:
        for value in values_of(consumer.consume(1_000, _WAIT_S)):
            said = decode_message(value)
            if isinstance(said, Report | Detail):
                yield said
