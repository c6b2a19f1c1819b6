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
    key_bytes: bytes
    value_bytes: bytes

    def key(self) -> bytes:
        return self.key_bytes

    def value(self) -> bytes:
        return self.value_bytes

    def error(self) -> None:
        # These clients recover from errors by themselves.
        ...


class QueueConsumer:
    """Base of the consumers: another thread of the client puts received messages into ``queue``."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[Received] = SimpleQueue()

    def poll(self, timeout: float) -> Received | None:
        try:
            return self.queue.get(timeout=timeout)
        except Empty:
            return None

    def consume(self, limit: int, _timeout: float) -> list[Received]:
        return [self.queue.get() for _ in range(min(limit, self.queue.qsize()))]

    def close(self) -> None:
        # The connection ends with the process.
        ...


def await_answers(missing: Callable[[], int], timeout_s: float) -> int:
    deadline_s = time.monotonic() + timeout_s
    while (left := missing()) and time.monotonic() < deadline_s:
        time.sleep(_LOOK_S)
    return left
