"""The pauses topic: what is paused, heard by every node, and how it is written."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Final

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from connectors.kafka.clients import consumer_client
from connectors.kafka.source import ASK_TIMEOUT_S, consumer_config
from delayservice.core.pauses import Pause, Paused, Pauses, decode_key, decode_pause, encode_key

_WAIT_S: Final = 1.0
_RETRY_S: Final = 1.0
_REFUSED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 (its public name)
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    }
)
"""The topic will not be read until somebody does something about it: then nothing is paused."""

_log = structlog.get_logger(__name__)


class PauseNews:
    """Reads the pauses topic, on a thread of its own.

    Until it was read once, everything counts as paused: what was paused before a restart must not
    go out in its first second.

    Args:
        topic: the pauses topic.
        client: options of a consumer.
        name: of the client.
    """

    def __init__(self, topic: str, client: Mapping[str, str], name: str) -> None:
        self.newest: Pauses | None = None
        self.problem = ""
        """Why the topic can't be read, for people; empty: it can."""
        self._topic = topic
        self._config = consumer_config(client, f"pauses-{name}") | {
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 500,
        }
        self._found: dict[Paused, Pause] = {}
        threading.Thread(target=self._run, name="pauses", daemon=True).start()

    def holds(self, topic: str) -> bool:
        """Whether nothing of a delay topic is to be settled."""
        newest = self.newest
        return newest is None or newest.holds(topic)

    def why(self, target: str) -> str | None:
        """Why nothing is to be delivered to a target; None: it is."""
        newest = self.newest
        return None if newest is None else newest.why(target)

    def keys(self) -> list[bytes]:
        """What is paused, as the topic's keys have it."""
        newest = self.newest
        return [] if newest is None else [encode_key(paused) for paused in newest.all]

    def _run(self) -> None:
        """Until the process ends."""
        while True:
            consumer = consumer_client(self._config)
            try:
                self._read(consumer)
            except KafkaException as exc:
                self._failed(exc)
            finally:
                consumer.close()
            time.sleep(_RETRY_S)

    def _failed(self, exc: KafkaException) -> None:
        error = exc.args[0]
        if error.code() not in _REFUSED:  # nothing can be delivered now either
            _log.debug("pauses_not_read", topic=self._topic, why=error.str())
            return
        problem = f"pauses are not heard of: topic {self._topic} can't be read: {error.str()}"
        if problem != self.problem:
            _log.error("pauses_not_read", topic=self._topic, why=error.str())
        self.problem = problem
        self.newest = self.newest or Pauses()

    def _read(self, consumer: Consumer) -> None:
        place = TopicPartition(self._topic, 0)
        low, _ = consumer.get_watermark_offsets(place, timeout=ASK_TIMEOUT_S)
        place.offset = low
        consumer.assign([place])
        self._found = {}
        is_whole = False
        while True:
            message = consumer.poll(_WAIT_S)  # ``consume`` would wait for more of them
            is_whole = (message is not None and self._take(message)) or is_whole
            if is_whole:
                self.problem = ""
                self.newest = Pauses(self._found)

    def _take(self, message: Message) -> bool:
        """Note one row; whether that was the end of the topic."""
        error = message.error()
        if error is not None and error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            return True
        if error is not None:
            raise KafkaException(error)
        paused = decode_key(message.key())
        value = message.value()
        if paused is not None and value is None:
            self._found.pop(paused, None)
        elif paused is not None and value is not None:
            self._found[paused] = decode_pause(value)
        return False
