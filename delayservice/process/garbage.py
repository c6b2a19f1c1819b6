"""Collection of Python's reference cycles at intervals, so that it does not slow down large
batches.

Every record is some ten small tuples and lists until its batch ends. Python's collector counts
those as new objects and visits all of them again and again: it took 60 % of the hot path's time
(``bench whole``). Yet they are never in a cycle, and are freed with the last reference. Cycles come
only from rare objects, such as exceptions, so one collection at long intervals is enough.
"""

from __future__ import annotations

import gc
import time
from typing import Final

COLLECT_INTERVAL_S: Final = 30.0


class GarbageCollector:
    """Collector of reference cycles at a fixed interval, not after a number of new objects."""

    def __init__(self) -> None:
        gc.disable()
        gc.freeze()  # without a collection: it takes a tenth of a second, and finds little
        self._collected_s = time.monotonic()

    def collect_when_time(self) -> None:
        # It takes milliseconds in which no thread of the process runs. Surviving objects are
        # excluded from later collections, because visiting those of a thousand slices takes a tenth
        # of a second; they are still freed with their last reference.
        now_s = time.monotonic()
        if now_s - self._collected_s >= COLLECT_INTERVAL_S:
            self._collected_s = now_s
            gc.collect()
            gc.freeze()
