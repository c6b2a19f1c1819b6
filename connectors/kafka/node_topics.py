"""Reads *node topics*, small topics that every node reads (pauses, audit results, repair commands),
with one consumer and one thread for all.

Each topic has one partition. A topic that can't be read is retried alone; reading the others goes
on. ``PauseWatcher`` handles the pauses topic, which says what is paused.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from connectors.kafka.clients import NO_GROUP, consumer_client
from connectors.kafka.errors import error_of
from connectors.kafka.log_ends import watermarks
from connectors.kafka.scan import consumer_config
from delayservice.engine.pauses import Pause, Paused, Pauses, decode_key, decode_pause, encode_key

_WAIT_S: Final = 1.0
_RETRY_S: Final = 1.0

_log = structlog.get_logger(__name__)


class NodeTopic(Protocol):
    """Handler of the records of one node topic. Only the reading thread calls it."""

    @property
    def topic(self) -> str:
        """Return the name of the node topic."""

    def begin(self, consumer: Consumer) -> tuple[int, int]:
        """Prepare for reading the topic anew; return the offset to begin at and the current end of
        the log.

        Raises:
            KafkaException: the cluster does not answer.
        """

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Process the next record of the topic: its key and value."""

    def at_end(self) -> None:
        """Note that all records up to the end of the log were passed to ``take``. The reader may
        call this several times.
        """

    def failed(self, why: str) -> None:
        """Note that the topic can't be read now; ``why`` is a text for users."""


class NodeTopicReader:
    """Reader of node topics, in a background thread that runs until the process ends."""

    def __init__(self, topics: Sequence[NodeTopic], client: Mapping[str, str], name: str) -> None:
        self._topics = {one.topic: one for one in topics}
        self._config = consumer_config(client, f"node-topics-{name}") | {
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 1_000,
        }
        # Time of the next try, monotonic seconds, by name of each topic that is not read now.
        self._due_s = dict.fromkeys(self._topics, 0.0)
        self._ends: dict[str, int] = {}
        self._is_outdated = False
        threading.Thread(target=self._run, name="node-topics", daemon=True).start()

    def made_again(self, topic: str) -> None:
        """Note that a topic was deleted and created again. If it is one of the node topics, all
        of them are read anew by a new consumer, because the old one keeps the former leaders.
        """
        self._is_outdated = self._is_outdated or topic in self._topics

    def _run(self) -> None:
        consumer = consumer_client(self._config)
        while True:
            if self._is_outdated:
                self._is_outdated = False
                consumer.close()
                consumer = consumer_client(self._config)
                self._due_s = dict.fromkeys(self._topics, 0.0)
            self._begin_due(consumer)
            message = consumer.poll(_RETRY_S if self._due_s else _WAIT_S)
            if message is not None:
                self._hear(consumer, message)

    def _begin_due(self, consumer: Consumer) -> None:
        """Begin to read all topics whose time in ``_due_s`` has come, in one assignment: otherwise
        a fetch under way for one topic would delay the next topic by its whole duration.
        """
        now_s = time.monotonic()
        due = [name for name, due_s in self._due_s.items() if now_s >= due_s]
        begun = [place for name in due if (place := self._begin(consumer, name)) is not None]
        if begun:
            consumer.incremental_assign(begun)

    def _begin(self, consumer: Consumer, name: str) -> TopicPartition | None:
        try:
            offset, end = self._topics[name].begin(consumer)
        except KafkaException as exc:
            self._failed(name, error_of(exc).str())
            return None
        del self._due_s[name]
        self._ends[name] = end
        if offset >= end:  # the broker reports the end only after a while
            self._topics[name].at_end()
        return TopicPartition(name, 0, offset)

    def _hear(self, consumer: Consumer, message: Message) -> None:
        name, error = message.topic(), message.error()
        one = self._topics.get(name or "")
        if one is None or (error is not None and error.code() == NO_GROUP):
            _log.debug("node_topics_event", why=str(error))
        elif error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001
            consumer.incremental_unassign([TopicPartition(one.topic, 0)])
            self._failed(one.topic, error.str())
        else:
            try:
                if error is None:
                    one.take(message.key(), message.value())
                if error is not None or (message.offset() or 0) + 1 == self._ends[one.topic]:
                    one.at_end()
            except Exception as exc:  # noqa: BLE001  # the reading of the others must go on
                _log.exception("node_topic_record_not_taken", topic=name)
                one.failed(f"{type(exc).__name__}: {exc}")

    def _failed(self, name: str, why: str) -> None:
        self._due_s[name] = time.monotonic() + _RETRY_S
        self._topics[name].failed(why)


# Time for which the pauses topic can't be read before that is reported, in s: new topics and
# restarts take a moment.
_COMPLAIN_S: Final = 3.0
_WAIT_AT_START_S: Final = 30.0


class PauseWatcher:
    """Handler of the pauses topic that keeps the active pauses; a ``node_topics.NodeTopic``.

    Until the topic was read once, all delay topics count as paused, so that records paused before a
    restart stay held. If the topic can't be read for ``_WAIT_AT_START_S``, nothing counts as
    paused, and ``problem`` gives the reason.
    """

    def __init__(self, topic: str, on_change: Callable[[], None] = lambda: None) -> None:
        self.topic = topic
        # Pauses in force; None: the topic was not read yet.
        self.newest: Pauses | None = None
        # Reason why the pauses topic can't be read, for users; empty: it can be read.
        self.problem = ""
        self._on_change = on_change
        self._found: dict[Paused, Pause] = {}
        self._is_whole = False
        # Time of the first failure to read the topic, monotonic seconds; 0: it can be read.
        self._failing_s = 0.0

    def holds(self, topic: str) -> bool:
        newest = self.newest
        return newest is None or newest.holds(topic)

    def why(self, target: str) -> str | None:
        newest = self.newest
        return None if newest is None else newest.why(target)

    def keys(self) -> list[bytes]:
        # Empty until the topic was read once.
        newest = self.newest
        return [] if newest is None else [encode_key(paused) for paused in newest.all]

    def begin(self, consumer: Consumer) -> tuple[int, int]:
        # The pauses in force stay until ``at_end``.
        bounds = watermarks(consumer, (self.topic, 0))
        self._found = {}
        self._is_whole = False
        return bounds

    def take(self, key: bytes | None, value: bytes | None) -> None:
        # It takes effect with ``at_end``, or at once if that was called before.
        paused = decode_key(key)
        if paused is not None and value is None:
            self._found.pop(paused, None)
        elif paused is not None and value is not None:
            self._found[paused] = decode_pause(value)
        if self._is_whole:
            self._changed()

    def at_end(self) -> None:
        self._failing_s = 0.0
        self.problem = ""
        if not self._is_whole:
            self._is_whole = True
            self._changed()

    def _changed(self) -> None:
        self.newest = Pauses(self._found)
        self._on_change()

    def failed(self, why: str) -> None:
        # If the topic was never read, deliveries begin without pauses after ``_WAIT_AT_START_S``.
        now_s = time.monotonic()
        self._failing_s = self._failing_s or now_s
        if now_s - self._failing_s < _COMPLAIN_S:
            return
        problem = f"pauses are not heard of: topic {self.topic} can't be read: {why}"
        if problem != self.problem:
            _log.error("pauses_not_read", topic=self.topic, why=why)
        self.problem = problem
        if self.newest is None and now_s - self._failing_s >= _WAIT_AT_START_S:
            _log.error("pauses_given_up", topic=self.topic, hint="delivery starts without pauses")
            self.newest = Pauses()
            self._on_change()
