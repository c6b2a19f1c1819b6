"""The pauses topic: what is paused, heard by every node, and how it is written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from connectors.kafka.clients import NO_GROUP, consumer_client
from connectors.kafka.source import ASK_TIMEOUT_S, consumer_config
from delayservice.core.pauses import Pause, Paused, Pauses, decode_key, decode_pause, encode_key

_WAIT_S: Final = 1.0
_RETRY_S: Final = 1.0
_COMPLAIN_S: Final = 3.0
"""A new topic, or a broker that restarts, takes a moment, which is no news."""
_WAIT_AT_START_S: Final = 30.0

_log = structlog.get_logger(__name__)


class PauseNews:
    """Reads the pauses topic, on a thread of its own.

    Until it was read once, everything counts as paused: what was paused before a restart must not
    go out in its first second. If that takes too long, nothing does, and ``problem`` says so.

    Args:
        topic: the pauses topic.
        client: options of a consumer.
        name: of the client.
    """

    def __init__(self, topic: str, client: Mapping[str, str], name: str) -> None:
        self.newest: Pauses | None = None
        self.on_change: Callable[[], None] = lambda: None
        """Called by the reading thread when something else is paused."""
        self.problem = ""
        """Why the topic can't be read, for people; empty: it can."""
        self._topic = topic
        self._config = consumer_config(client, f"pauses-{name}") | {
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 500,
        }
        self._found: dict[Paused, Pause] = {}
        self._failing_s = 0.0
        """Since when it can't be read, monotonic; 0: it can."""
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
        """Until the process ends, whatever happens."""
        while True:
            consumer = consumer_client(self._config)
            try:
                self._read(consumer)
            except KafkaException as exc:
                self._failed(exc.args[0].str())
            except Exception as exc:  # noqa: BLE001  # else nobody would hear of pauses any more
                _log.exception("pauses_not_read", topic=self._topic)
                self._failed(f"{type(exc).__name__}: {exc}")
            finally:
                consumer.close()
            time.sleep(_RETRY_S)

    def _failed(self, why: str) -> None:
        """Say so when it lasts. Deliveries wait for the pauses at a start, but not for ever: what
        nobody can read would stop everything.
        """
        now_s = time.monotonic()
        self._failing_s = self._failing_s or now_s
        if now_s - self._failing_s < _COMPLAIN_S:
            return
        problem = f"pauses are not heard of: topic {self._topic} can't be read: {why}"
        if problem != self.problem:
            _log.error("pauses_not_read", topic=self._topic, why=why)
        self.problem = problem
        if self.newest is None and now_s - self._failing_s >= _WAIT_AT_START_S:
            _log.error("pauses_given_up", topic=self._topic, hint="nothing counts as paused now")
            self.newest = Pauses()

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
                self._failing_s = 0.0
                self.newest = Pauses(self._found)
                self.on_change()

    def _take(self, message: Message) -> bool:
        """Note one row; whether that was the end of the topic."""
        error = message.error()
        if error is not None and error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            return True
        if error is not None and error.code() == NO_GROUP:
            return False
        if error is not None:
            raise KafkaException(error)
        paused = decode_key(message.key())
        value = message.value()
        if paused is not None and value is None:
            self._found.pop(paused, None)
        elif paused is not None and value is not None:
            self._found[paused] = decode_pause(value)
        return False
