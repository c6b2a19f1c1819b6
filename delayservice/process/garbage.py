"""Python's cycle collector, kept out of the way of large batches.

Every record is some ten small tuples and lists for as long as its batch lives. The collector counts
those as news and walks all of them again and again: it took 60 % of the hot path's time (``bench
whole``). Yet none of them is ever in a cycle; they go when the last reference goes. What cycles
there are come from rare things, such as exceptions, so one collection now and then is enough.
"""

from __future__ import annotations

import gc
import time
from typing import Final

COLLECT_INTERVAL_S: Final = 30.0


class GarbageCollector:
    """Collects at a fixed interval instead of by count."""

    def __init__(self) -> None:
        """Take over: whatever the process has set up by now is kept out of every collection."""
        gc.disable()
        gc.collect()
        gc.freeze()
        self._collected_s = time.monotonic()

    def collect_when_time(self) -> None:
        """Collect if the last time is long enough ago. Takes milliseconds, in which no thread of
        the process runs: what survives is kept out of the next collections, for with a thousand
        slices walking over all of it takes a tenth of a second. It still goes with its last
        reference.
        """
        now_s = time.monotonic()
        if now_s - self._collected_s >= COLLECT_INTERVAL_S:
            self._collected_s = now_s
            gc.collect()
            gc.freeze()
