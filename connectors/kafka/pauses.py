"""Reads the pauses topic, which says which delay topics and target topics are paused."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import structlog
from confluent_kafka import Consumer

from connectors.kafka.log_ends import watermarks
from delayservice.engine.pauses import Pause, Paused, Pauses, decode_key, decode_pause, encode_key

# Time for which the pauses topic can't be read before that is reported, in s: new topics and
# restarts take a moment.
_COMPLAIN_S: Final = 3.0
_WAIT_AT_START_S: Final = 30.0

_log = structlog.get_logger(__name__)


class PauseWatcher:
    """Handler of the pauses topic that keeps the active pauses; a ``control_topics.ControlTopic``.

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
