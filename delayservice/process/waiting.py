"""Wait for a Kafka cluster that does not answer yet."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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


@contextmanager
def reporting(publish: Callable[[bytes], None]) -> Iterator[Callable[[str], None]]:
    """Report to the supervisor every second, within this context, that this worker is alive and why
    it waits for Kafka; yield a function that sets the reason. Another thread calls ``publish`` with
    encoded snapshots, because the waiting one may be blocked.
    """
    reason, over = "it has not answered yet", threading.Event()

    def waits(why: str) -> None:
        nonlocal reason
        reason = why

    def run() -> None:
        with suppress(OSError):  # the supervisor is gone; its watch ends this process
            while not over.is_set():
                verdict = electability(WorkerFacts(kafka=reason))
                cause = verdict.cause.value, verdict.reason
                publish(encode_snapshot(Snapshot(os.getpid(), verdict=cause)))
                over.wait(_REPORT_S)

    thread = threading.Thread(target=run, name="report", daemon=True)
    thread.start()
    try:
        yield waits
    finally:
        over.set()
        thread.join()
