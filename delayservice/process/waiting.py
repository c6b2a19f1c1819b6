"""Wait for a Kafka cluster that does not answer yet."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Final, Literal, TypeVar

import structlog
from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential
from tenacity.nap import sleep_using_event
from tenacity.stop import stop_when_event_set

from delayservice.base.errors import DelayServiceError, KafkaEdgeError
from delayservice.engine.electability import WorkerFacts, electability
from delayservice.metrics.snapshot import Snapshot, encode_snapshot

Answer = TypeVar("Answer")
_REPORT_S: Final = 1.0

_log = structlog.get_logger(__name__)


class _Stopped(Enum):
    STOPPED = "stopped"


STOPPED: Final = _Stopped.STOPPED


def wait_for_kafka(
    ask: Callable[[], Answer],
    stopping: threading.Event,
    waits: Callable[[str], None] = lambda _: None,
) -> Answer | Literal[_Stopped.STOPPED]:
    """Call ``ask`` until it no longer raises ``KafkaEdgeError``, with growing pauses; return its
    result, or ``STOPPED`` once ``stopping`` is set. ``waits``: called with the reason for each
    pause.
    """

    def tell(state: RetryCallState) -> None:
        why = state.outcome.exception() if state.outcome is not None else None
        _log.warning("waiting_for_kafka", why=str(why))
        waits(str(why))

    retrying = Retrying(
        retry=retry_if_exception_type(KafkaEdgeError),
        wait=wait_exponential(multiplier=0.5, max=10),
        stop=stop_when_event_set(stopping),
        sleep=sleep_using_event(stopping),
        before_sleep=tell,
    )
    try:
        return retrying(ask)
    except DelayServiceError:
        raise
    except Exception:
        if stopping.is_set():
            return STOPPED
        raise


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
