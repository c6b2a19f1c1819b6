"""Writes digests of copies, and writes and reads requests about copies and the nodes' reports."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from msgspec.structs import replace

from connectors.kafka.clients import (
    consumer_client,
    producer_client,
    values_of,
    write_confirmed,
)
from connectors.kafka.errors import error_of
from connectors.kafka.log_ends import ASK_TIMEOUT_S, watermarks
from connectors.kafka.scan import consumer_config
from delayservice.base.errors import KafkaEdgeError
from delayservice.replicas.commands import Command, Report, decode_message, encode_message

# Age up to which a node takes commands that were written before its start, in ms.
REMEMBERED_MS: Final = 3_600_000
# Reports with records that may wait in the producer's queue, which also holds digests.
_REPORTS_QUEUED: Final = 32
_TOLD_EVERY_S: Final = 60.0

_Heard = Callable[[KafkaError | None, object], None]

_log = structlog.get_logger(__name__)


class CopyLog:
    """Writer of digests, and of reports on requests about copies. It uses no transactions, as these
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
        self._told_s = -math.inf

    def write(self, row: tuple[bytes, bytes | None], on_lost: Callable[[], None]) -> None:
        """Queue a record (key and value) for the digest topic; ``on_lost`` is called if it could
        not be written.
        """

        def report(error: KafkaError | None, _message: object) -> None:
            if error is None:
                return
            on_lost()
            # Each digest of each copy is written again, for as long as it can't be.
            if time.monotonic() - self._told_s >= _TOLD_EVERY_S:
                self._told_s = time.monotonic()
                _log.warning("digest_not_written", topic=self._digests, why=str(error))

        key, value = row
        self._produce(self._digests, key, value, report)

    def report(self, report: Report) -> None:
        # A failure is only logged: the request is repeated if there is no report.

        def written(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                _log.warning("answer_not_written", topic=self._repairs, why=str(error))

        self._produce(self._repairs, report.plan.encode(), encode_message(report), written)

    def report_when_room(self, report: Report) -> None:
        """Write a report that may be large, once the producer's queue has room for it; unlike the
        other methods, this one may wait for as long as Kafka is away.
        """
        while len(self._producer) > _REPORTS_QUEUED:
            self._producer.poll(0.1)
        self.report(report)

    def _produce(self, topic: str, key: bytes, value: bytes | None, report: _Heard) -> None:
        self._producer.poll(0)
        try:
            self._producer.produce(topic, value, key, on_delivery=report)
        # Kafka is away, or the topic; what is lost is published anew.
        except BufferError:
            report(KafkaError(KafkaError._QUEUE_FULL), None)  # noqa: SLF001 (its public name)
        except KafkaException as exc:
            report(error_of(exc), None)

    def serve(self) -> None:
        self._producer.poll(0)

    def flush(self, timeout_s: float) -> None:
        self._producer.flush(timeout_s)


class RepairWatcher:
    """Handler of the repair topic's commands for one node; a ``node_topics.NodeTopic``. At the
    start, it passes on the commands of the last hour that the node has not answered.
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


_WAIT_S: Final = 0.2


class RepairClient:
    """A client that writes commands about copies and waits for the nodes' reports."""

    def __init__(
        self, client: Mapping[str, str], topic: str, stop: threading.Event | None = None
    ) -> None:
        self._client = client
        self._topic = topic
        self._stop = stop or threading.Event()

    def ask(self, commands: Sequence[Command], timeout_s: float) -> Iterator[Report]:
        """Write ``commands`` and yield the nodes' reports on them as they come, until each command
        has one, ``timeout_s`` seconds are over, or ``stop`` is set. Nodes begin none after that.
        """
        expires_ms = int((time.time() + timeout_s) * 1_000)
        open_steps = {(command.plan, command.step) for command in commands}
        consumer = consumer_client(consumer_config(self._client, "repair-desk"))
        try:
            _, end = watermarks(consumer, (self._topic, 0))
            consumer.assign([TopicPartition(self._topic, 0, end)])
            records = [
                {"topic": self._topic, "key": one.plan.encode(), "value": encode_message(one)}
                for one in (replace(command, expires_ms=expires_ms) for command in commands)
            ]
            write_confirmed(self._client, records, ASK_TIMEOUT_S)
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
