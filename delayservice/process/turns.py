"""Lock by which other threads read the data of a working thread while that one waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from delayservice.base.errors import DelayServiceError


class BusyError(DelayServiceError):
    """The thread made no pause in time, or has ended."""


class Turns:
    """Lock of a working thread, which other threads hold only in its pauses."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_over = False

    @contextmanager
    def working(self) -> Iterator[None]:
        """Hold the lock while the thread works; afterwards ``looking`` always fails."""
        with self._lock:
            try:
                yield
            finally:
                self._is_over = True

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Release the lock during a wait of the thread, inside of ``working``."""
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()

    @contextmanager
    def looking(self, timeout_s: float) -> Iterator[None]:
        """Hold the lock in another thread, in a pause of the working one.

        Raises:
            BusyError: the thread made no pause in time, or has ended.
        """
        if not self._lock.acquire(timeout=timeout_s):
            raise BusyError(f"it was busy for {timeout_s:g} s; try again")
        try:
            if self._is_over:
                raise BusyError("it has ended; another node or worker may serve it")
            yield
        finally:
            self._lock.release()
