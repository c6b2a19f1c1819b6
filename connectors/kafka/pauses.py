"""The pauses topic: what is paused, heard by every node, and how it is written."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import structlog
from confluent_kafka import Consumer

from connectors.kafka.log_ends import watermarks
from delayservice.engine.pauses import Pause, Paused, Pauses, decode_key, decode_pause, encode_key

_COMPLAIN_S: Final = 3.0
"""A new topic, or a broker that restarts, takes a moment."""
_WAIT_AT_START_S: Final = 30.0

_log = structlog.get_logger(__name__)


class PauseWatcher:
    """Follows the pauses topic; see ``control_topics.ControlTopic``.

    Until it was read once, everything counts as paused: what was paused before a restart must not
    go out in its first second. If that takes too long, nothing does, and ``problem`` says so.

    Args:
        topic: the pauses topic.
        on_change: called by the reading thread when something else is paused.
    """

    def __init__(self, topic: str, on_change: Callable[[], None] = lambda: None) -> None:
        self.topic = topic
        self.newest: Pauses | None = None
        self.problem = ""
        """Why the topic can't be read, for people; empty: it can."""
        self._on_change = on_change
        self._found: dict[Paused, Pause] = {}
        self._is_whole = False
        self._failing_s = 0.0
        """Since when it can't be read, monotonic; 0: it can."""

    def holds(self, topic: str) -> bool:
        """Return whether nothing of a delay topic is to be settled."""
        newest = self.newest
        return newest is None or newest.holds(topic)

    def why(self, target: str) -> str | None:
        """Return why nothing may be delivered to a target; None: it is not paused."""
        newest = self.newest
        return None if newest is None else newest.why(target)

    def keys(self) -> list[bytes]:
        """Return the pauses in force, as keys of the topic."""
        newest = self.newest
        return [] if newest is None else [encode_key(paused) for paused in newest.all]

    def begin(self, consumer: Consumer) -> tuple[int, int]:
        """Begin at the start of the topic; see the protocol."""
        bounds = watermarks(consumer, (self.topic, 0))
        self._found = {}
        self._is_whole = False
        return bounds

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Note one row; see the protocol."""
        paused = decode_key(key)
        if paused is not None and value is None:
            self._found.pop(paused, None)
        elif paused is not None and value is not None:
            self._found[paused] = decode_pause(value)
        if self._is_whole:
            self._changed()

    def at_end(self) -> None:
        """Take what was read for all there is; see the protocol."""
        self._failing_s = 0.0
        self.problem = ""
        if not self._is_whole:
            self._is_whole = True
            self._changed()

    def _changed(self) -> None:
        self.newest = Pauses(self._found)
        self._on_change()

    def failed(self, why: str) -> None:
        """Say so when it lasts. Deliveries wait for the pauses at a start, but not for ever: what
        can't be read would stop everything.
        """
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
