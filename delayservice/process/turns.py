"""Lock by which other threads may read the data of a working thread while it waits for records."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from delayservice.base.errors import DelayServiceError


class BusyError(DelayServiceError):
    """The working thread made no pause in time, or has ended, so its data could not be read."""


class Turns:
    """Lock that a working thread holds except in its pauses, in which other threads may take it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_over = False

    @contextmanager
    def working(self) -> Iterator[None]:
        # After the context has ended, ``looking`` always fails.
        with self._lock:
            try:
                yield
            finally:
                self._is_over = True

    @contextmanager
    def pausing(self) -> Iterator[None]:
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()

    @contextmanager
    def looking(self, timeout_s: float) -> Iterator[None]:
        if not self._lock.acquire(timeout=timeout_s):
            raise BusyError(f"it was busy for {timeout_s:g} s; try again")
        try:
            if self._is_over:
                raise BusyError("it has ended; another node or worker may serve it")
            yield
        finally:
            self._lock.release()
