"""The digest topic and the repair topic: what a node writes of its copies, and what it is asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from connectors.kafka.clients import NO_GROUP, consumer_client, producer_client, values_of
from connectors.kafka.source import ASK_TIMEOUT_S, consumer_config
from delayservice.core.repair import Command, Report, decode_message

REMEMBERED_MS: Final = 3_600_000
"""How far back a node that starts looks for commands it was not there for."""

_WAIT_S: Final = 0.5
_RETRY_S: Final = 2.0

_Heard = Callable[[KafkaError | None, object], None]

_log = structlog.get_logger(__name__)


class CopyLog:
    """Writes digests and answers; without a transaction, for they are only about the copies.

    Args:
        client: options of the client.
        digests: the digest topic.
        repairs: the repair topic.
    """

    def __init__(self, client: Mapping[str, str], digests: str, repairs: str) -> None:
        self._producer = producer_client(
            {
                **client,
                "enable.idempotence": True,
                "compression.type": "zstd",
                "linger.ms": 50,
                "queue.buffering.max.kbytes": 65_536,
            }
        )
        self._digests = digests
        self._repairs = repairs

    def write(self, row: tuple[bytes, bytes | None], on_lost: Callable[[], None]) -> None:
        """Write a row of the digest topic; see the port."""

        def report(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                _log.warning("digest_not_written", topic=self._digests, why=str(error))
                on_lost()

        key, value = row
        self._produce(self._digests, key, value, report)

    def answer(self, plan: str, value: bytes) -> None:
        """Write an answer; see the port. Whoever waits for one that is lost asks again."""

        def report(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                _log.warning("answer_not_written", topic=self._repairs, why=str(error))

        self._produce(self._repairs, plan.encode(), value, report)

    def _produce(self, topic: str, key: bytes, value: bytes | None, report: _Heard) -> None:
        self._producer.poll(0)
        try:
            self._producer.produce(topic, value, key, on_delivery=report)
        except BufferError:  # Kafka is away; what is lost is published anew
            report(KafkaError(KafkaError._QUEUE_FULL), None)  # noqa: SLF001 (its public name)

    def serve(self) -> None:
        """Hear what became of what was written."""
        self._producer.poll(0)

    def flush(self, timeout_s: float) -> None:
        """Wait until everything is written, or the time is over."""
        self._producer.flush(timeout_s)


class RepairCommands:
    """Reads the commands for one node; a thread of its own.

    Args:
        topic: the repair topic.
        client: options of the client.
        node_id: this node.
        name: of the client.
        take: told of each command, in order.
    """

    def __init__(
        self,
        topic: str,
        client: Mapping[str, str],
        node_id: str,
        name: str,
        take: Callable[[Command], None],
    ) -> None:
        self._topic = topic
        self._config = consumer_config(client, f"repairs-{name}") | {
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 1_000,
        }
        self._node_id = node_id
        self._take = take
        threading.Thread(target=self._run, name="repair-commands", daemon=True).start()

    def _run(self) -> None:
        """Until the process ends. Without this topic a node does all else, so it is waited for."""
        while True:
            try:
                self._read()
            except KafkaException as exc:
                _log.warning("repair_topic_not_read", topic=self._topic, why=str(exc))
                time.sleep(_RETRY_S)

    def _read(self) -> None:
        """Commands of the last hour that this node has not answered, and those that come."""
        consumer = consumer_client(self._config)
        try:
            since = TopicPartition(self._topic, 0, int(time.time() * 1000) - REMEMBERED_MS)
            found = consumer.offsets_for_times([since], timeout=ASK_TIMEOUT_S)
            if found[0].error is not None:
                raise KafkaException(found[0].error)
            consumer.assign(found)
            self._catch_up(consumer)
            while True:
                for value in values_of(consumer.consume(100, _WAIT_S)):
                    said = decode_message(value)
                    if isinstance(said, Command) and said.node == self._node_id:
                        self._take(said)
        finally:
            consumer.close()

    def _catch_up(self, consumer: Consumer) -> None:
        waiting: dict[tuple[str, int], Command] = {}
        at_end = False
        while not at_end:
            for message in consumer.consume(1_000, _WAIT_S):
                error = message.error()
                if error is None:
                    self._note(message.value() or b"", waiting)
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                    at_end = True
                elif error.code() != NO_GROUP:
                    raise KafkaException(error)
        for command in waiting.values():
            self._take(command)

    def _note(self, value: bytes, waiting: dict[tuple[str, int], Command]) -> None:
        """A command that waits, or the answer to one."""
        said = decode_message(value)
        if isinstance(said, Command) and said.node == self._node_id:
            waiting[(said.plan, said.step)] = said
        elif isinstance(said, Report) and said.node == self._node_id:
            waiting.pop((said.plan, said.step), None)
