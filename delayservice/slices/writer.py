from __future__ import annotations

import math
from concurrent.futures import Future
from typing import Final

from delayservice.base.errors import KafkaEdgeError
from delayservice.slices.edges import Edges

_OPEN_RETRY_S: Final = 1.0
# After more losses in a row, slices are left to other nodes.
LOSSES_MAX: Final = 2
# Multiplied by 2 to the power of the number of losses in a row.
_LOSS_REST_S: Final = 0.1
_LOSS_REST_S_MAX: Final = 5.0
_SLOW_S: Final = 5.0
# Longest time between two losses that count as losses in a row.
_LOSSES_S: Final = 20.0


class WriterOpener:
    """Opener of a worker's transactional producer, one at a time, on the writer's thread.
    ``losses`` counts those in a row.
    """

    def __init__(self, edges: Edges) -> None:
        self.losses = 0
        self._edges = edges
        self._clock = edges.clock
        self._opening: Future[str] | None = None
        self._began_s = math.inf
        self._refusal = ""
        self._open_after_s = -math.inf
        self._lost_s = -math.inf

    @property
    def is_opening(self) -> bool:
        return self._opening is not None

    # Why no writer can be opened; empty: one can, or it is too early to tell. Any thread may call.
    @property
    def trouble(self) -> str:
        took_s = self._clock.monotonic_s() - self._began_s
        return self._refusal or (f"no answer for {took_s:.0f} s" if took_s > _SLOW_S else "")

    def open_when_time(self) -> bool:
        """Start to open a writer, unless a pause or an opening is going on; return whether it
        did.
        """
        if self._opening is not None or self._clock.monotonic_s() < self._open_after_s:
            return False
        self._began_s = self._clock.monotonic_s()
        self._opening = self._edges.writing.submit(self._edges.sink.open)
        return True

    def hear(self) -> str | None:
        """Return a newly opened writer's transactional id. Raise ``KafkaEdgeError`` if opening
        failed.
        """
        opening = self._opening
        if opening is None or not opening.done():
            return None
        self._opening, self._began_s = None, math.inf
        try:
            writer = opening.result()
        except KafkaEdgeError as exc:
            self._open_after_s = self._clock.monotonic_s() + _OPEN_RETRY_S
            self._refusal = str(exc)
            raise
        self._refusal = ""
        return writer

    def count_loss(self) -> None:
        """Count a lost writer. From the second in a row on, the next opening is delayed, twice
        as long each time.
        """
        now_s = self._clock.monotonic_s()
        self.losses = 1 if now_s - self._lost_s > _LOSSES_S else self.losses + 1
        self._lost_s = now_s
        if self.losses > 1:  # another node's take-over causes one loss
            rest_s = min(_LOSS_REST_S * 2**self.losses, _LOSS_REST_S_MAX)
            self._open_after_s = now_s + rest_s
