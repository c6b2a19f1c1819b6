"""Writes a node's digests and its answers to commands about copies, and reads these commands from
the repair topic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from connectors.kafka.clients import producer_client
from connectors.kafka.log_ends import ASK_TIMEOUT_S, watermarks
from delayservice.replicas.commands import Command, Report, decode_message

# Age up to which a node takes commands that were written before its start, in ms.
REMEMBERED_MS: Final = 3_600_000

_Heard = Callable[[KafkaError | None, object], None]

_log = structlog.get_logger(__name__)


class CopyLog:
    """Writer of digests, and of answers to commands about copies. It uses no transactions, as these
    records only describe copies.
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
        """Queue a record (key and value) for the digest topic; ``on_lost`` is called if it could
        not be written.
        """

        def report(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                _log.warning("digest_not_written", topic=self._digests, why=str(error))
                on_lost()

        key, value = row
        self._produce(self._digests, key, value, report)

    def answer(self, plan: str, value: bytes) -> None:
        # A failure is only logged: the command is repeated if there is no answer.

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
        self._producer.poll(0)

    def flush(self, timeout_s: float) -> None:
        self._producer.flush(timeout_s)


class RepairWatcher:
    """Handler of the repair topic's commands for one node; a ``control_topics.ControlTopic``. At
    the start, it passes on the commands of the last hour that the node has not answered.
    """

    def __init__(self, topic: str, node_id: str, give: Callable[[Command], None]) -> None:
        self.topic = topic
        self._node_id = node_id
        self._give = give
        # Commands without an answer so far, by plan and step; None: ``at_end`` was called.
        self._waiting: dict[tuple[str, int], Command] | None = {}

    def begin(self, consumer: Consumer) -> tuple[int, int]:
        self._waiting = {}
        since = TopicPartition(self.topic, 0, int(time.time() * 1000) - REMEMBERED_MS)
        (found,) = consumer.offsets_for_times([since], timeout=ASK_TIMEOUT_S)
        if found.error is not None:
            raise KafkaException(found.error)
        _, high = watermarks(consumer, (self.topic, 0))
        return (found.offset if found.offset >= 0 else high), high

    def take(self, key: bytes | None, value: bytes | None) -> None:  # noqa: ARG002  # as the protocol
        """Pass on a command for this node. Until ``at_end``, keep it instead, and drop it when this
        node's answer to it is read.
        """
        said = decode_message(value or b"")
        if isinstance(said, Command) and said.node == self._node_id:
            if self._waiting is None:
                self._give(said)
            else:
                self._waiting[(said.plan, said.step)] = said
        elif isinstance(said, Report) and said.node == self._node_id and self._waiting:
            self._waiting.pop((said.plan, said.step), None)

    def at_end(self) -> None:
        waiting, self._waiting = self._waiting, None
        for command in (waiting or {}).values():
            self._give(command)

    def failed(self, why: str) -> None:
        # Other work of the node does not depend on commands.
        _log.warning("repair_topic_not_read", topic=self.topic, why=why)
