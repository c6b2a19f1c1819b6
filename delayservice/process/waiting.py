"""Waits of node and workers: for Kafka, for their stores, and for the signal to stop."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Final, TypeVar

import structlog

from delayservice.base.errors import KafkaEdgeError
from delayservice.engine.electability import WorkerFacts, electability
from delayservice.metrics.snapshot import Snapshot, encode_snapshot

Answer = TypeVar("Answer")
_REPORT_S: Final = 1.0
_PAUSE_S_MIN: Final = 0.5
_PAUSE_S_MAX: Final = 10.0

_log = structlog.get_logger(__name__)


def stop_event(*numbers: signal.Signals) -> threading.Event:
    """Return an event that the first of these signals sets. Called by the main thread."""
    # Not by the handler: that runs in the main thread, and would wait for ever if the thread is
    # just inside ``Event.wait``, with the lock that ``Event.set`` needs. A SimpleQueue may be
    # put to anywhere.
    stopping, received = threading.Event(), SimpleQueue[int]()
    for number in numbers:
        signal.signal(number, lambda number, _: received.put(number))

    def run() -> None:
        received.get()
        stopping.set()

    threading.Thread(target=run, name="signals", daemon=True).start()
    return stopping


def wait_for_kafka(
    ask: Callable[[], Answer],
    stopping: threading.Event,
    waits: Callable[[str], None] = lambda _: None,
) -> Answer | None:
    """Call ``ask`` until it no longer raises ``KafkaEdgeError``, with growing pauses; return its
    result, or None once ``stopping`` is set. ``waits``: called with the reason for each pause.
    """
    pause_s = _PAUSE_S_MIN
    while True:
        try:
            return ask()
        except KafkaEdgeError as exc:
            _log.warning("waiting_for_kafka", why=str(exc))
            waits(str(exc))
        if stopping.wait(pause_s):
            return None
        pause_s = min(2 * pause_s, _PAUSE_S_MAX)


class Starting:
    """Reports of a worker before its loop runs: why it waits for Kafka, and since when it has been
    opening its store, which may never end.
    """

    def __init__(self) -> None:
        self._reason = "it has not answered yet"
        self._opening_s: float | None = None

    def waits(self, why: str) -> None:
        self._reason = why

    @contextmanager
    def opening(self) -> Iterator[None]:
        self._opening_s = time.monotonic()
        try:
            yield
        finally:
            self._opening_s = None

    def snapshot(self) -> Snapshot:
        since_s = self._opening_s
        turn_s = 0.0 if since_s is None else time.monotonic() - since_s
        facts = WorkerFacts(kafka=self._reason) if since_s is None else WorkerFacts(turn_s=turn_s)
        verdict = electability(facts)
        return Snapshot(os.getpid(), verdict=(verdict.cause.value, verdict.reason), turn_s=turn_s)


@contextmanager
def reporting(publish: Callable[[bytes], None]) -> Iterator[Starting]:
    """Report to the supervisor every second, within this context, that this worker is alive, and
    what it does. Another thread calls ``publish`` with encoded snapshots, because the one that
    starts may be blocked.
    """
    starting, over = Starting(), threading.Event()

    def run() -> None:
        with suppress(OSError):  # the supervisor is gone; its watch ends this process
            while not over.is_set():
                publish(encode_snapshot(starting.snapshot()))
                over.wait(_REPORT_S)

    thread = threading.Thread(target=run, name="report", daemon=True)
    thread.start()
    try:
        yield starting
    finally:
        over.set()
        thread.join()
