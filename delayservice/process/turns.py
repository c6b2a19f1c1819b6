"""Lets other threads look at one thread's data while that thread waits for something else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from delayservice.base.errors import DelayServiceError


class BusyError(DelayServiceError):
    """The thread did not come to wait in time."""


class Turns:
    """One thread works for as long as it likes; others look in the pauses that it makes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_over = False

    @contextmanager
    def working(self) -> Iterator[None]:
        """Around all that the thread does. Afterwards no thread looks any more."""
        with self._lock:
            try:
                yield
            finally:
                self._is_over = True

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Around a wait of the thread, inside of ``working``."""
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()

    @contextmanager
    def looking(self, timeout_s: float) -> Iterator[None]:
        """Around a look, by another thread.

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
