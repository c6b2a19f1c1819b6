"""Waiting for a cluster that does not answer yet."""

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
from delayservice.metrics.snapshot import encode_snapshot

Answer = TypeVar("Answer")
_REPORT_S: Final = 1.0

_log = structlog.get_logger(__name__)


class _Stopped(Enum):
    STOPPED = "stopped"


STOPPED: Final = _Stopped.STOPPED
"""The wait ended because the process is to stop."""


def wait_for_kafka(
    ask: Callable[[], Answer],
    stopping: threading.Event,
    waits: Callable[[str], None] = lambda _: None,
) -> Answer | Literal[_Stopped.STOPPED]:
    """Ask until Kafka answers, with growing pauses; ``STOPPED`` when the process is to stop.
    ``waits`` is called with the reason for each pause.

    Raises:
        DelayServiceError: any other than ``KafkaEdgeError``.
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


class StandInReport:
    """Reports for a worker until its loop does: that it lives, and what it waits for."""

    def __init__(self) -> None:
        self._kafka = "it has not answered yet"

    def waits(self, why: str) -> None:
        """Note why the worker waits for Kafka."""
        self._kafka = why

    def encoded(self) -> bytes:
        """Return it as the supervisor takes it."""
        verdict = electability(WorkerFacts(kafka=self._kafka))
        return encode_snapshot(os.getpid(), [], verdict=(verdict.cause.value, verdict.reason))


@contextmanager
def reporting(publish: Callable[[bytes], None]) -> Iterator[StandInReport]:
    """Report every second, on a thread of its own: the thread that waits for Kafka may be in a
    call.
    """
    report, over = StandInReport(), threading.Event()

    def run() -> None:
        with suppress(OSError):  # the supervisor is gone; its watch ends this process
            while not over.is_set():
                publish(report.encoded())
                over.wait(_REPORT_S)

    thread = threading.Thread(target=run, name="report", daemon=True)
    thread.start()
    try:
        yield report
    finally:
        over.set()
        thread.join()
