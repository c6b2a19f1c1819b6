"""Common parts of the clients of RocketMQ and NATS, with the method names of Kafka clients."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final

_LOOK_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Received:
    """Delivered message, with those methods of a Kafka message that the judge process calls.

    Attributes:
        key_bytes: key of the record.
        value_bytes: value of the record.
    """

    key_bytes: bytes
    value_bytes: bytes

    def key(self) -> bytes:
        """Return the key."""
        return self.key_bytes

    def value(self) -> bytes:
        """Return the value."""
        return self.value_bytes

    def error(self) -> None:
        """Return None: these clients recover from errors by themselves."""


class QueueConsumer:
    """Base of the consumers: another thread of the client puts received messages into ``queue``."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[Received] = SimpleQueue()

    def poll(self, timeout: float) -> Received | None:
        """Return the next message, waiting ``timeout`` seconds at most; None: no message came."""
        try:
            return self.queue.get(timeout=timeout)
        except Empty:
            return None

    def consume(self, limit: int, _timeout: float) -> list[Received]:
        """Return up to ``limit`` messages that have been received, without waiting."""
        return [self.queue.get() for _ in range(min(limit, self.queue.qsize()))]

    def close(self) -> None:
        """Do nothing: the connection ends with the process."""


def await_answers(missing: Callable[[], int], timeout_s: float) -> int:
    """Wait ``timeout_s`` seconds at most until ``missing``, the number of unanswered requests,
    returns 0; return its last value.
    """
    deadline_s = time.monotonic() + timeout_s
    while (left := missing()) and time.monotonic() < deadline_s:
        time.sleep(_LOOK_S)
    return left
