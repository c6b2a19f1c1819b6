"""Waiting for a cluster that does not answer yet."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from typing import Final, Literal, TypeVar

import structlog
from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential
from tenacity.nap import sleep_using_event
from tenacity.stop import stop_when_event_set

from delayservice.errors import DelayServiceError, KafkaEdgeError

Answer = TypeVar("Answer")

_log = structlog.get_logger(__name__)


class _Stopped(Enum):
    STOPPED = "stopped"


STOPPED: Final = _Stopped.STOPPED
"""The wait ended because the process is to stop."""


def wait_for_kafka(
    ask: Callable[[], Answer], stopping: threading.Event
) -> Answer | Literal[_Stopped.STOPPED]:
    """Ask until Kafka answers, with growing pauses; ``STOPPED`` when the process is to stop.

    Raises:
        DelayServiceError: any other than ``KafkaEdgeError``.
    """

    def tell(state: RetryCallState) -> None:
        why = state.outcome.exception() if state.outcome is not None else None
        _log.warning("waiting_for_kafka", why=str(why))

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
