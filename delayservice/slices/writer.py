"""Opening of a worker's writer (transactional producer), with a pause after repeated losses."""

from __future__ import annotations

import math
from concurrent.futures import Future
from typing import Final

from delayservice.base.errors import KafkaEdgeError
from delayservice.slices.edges import Edges

_OPEN_RETRY_S: Final = 1.0
"""Pause before a writer is opened again after that failed, seconds."""
LOSSES_MAX: Final = 2
"""Number of lost writers in a row above which slices are left to other nodes."""
_LOSS_REST_S: Final = 0.1
"""Pause before a new writer is opened after several losses in a row, seconds, multiplied by 2 to
the power of their number."""
_LOSS_REST_S_MAX: Final = 5.0
"""Longest pause before a new writer is opened after losses in a row, seconds."""
_SLOW_S: Final = 5.0
"""Time for which a writer may be opened before that counts as trouble, seconds."""
_LOSSES_S: Final = 20.0
"""Longest time between two losses of a writer that count as losses in a row, seconds."""


class WriterOpener:
    """Opener of a worker's writer, one at a time, on the writer's thread.

    Args:
        edges: clients and clock of the loop.

    Attributes:
        losses: number of writers lost in a row, each within ``_LOSSES_S`` of the one before.
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
        """Return whether a writer is being opened."""
        return self._opening is not None

    @property
    def trouble(self) -> str:
        """Return why no writer can be opened; empty: the last one could, or it is too early to
        tell. Any thread may call.
        """
        took_s = self._clock.monotonic_s() - self._began_s
        return self._refusal or (f"no answer for {took_s:.0f} s" if took_s > _SLOW_S else "")

    def open_when_time(self) -> bool:
        """Start to open a writer, unless one is being opened or the pause after a loss or a failed
        opening is not over. Return whether it was started.
        """
        if self._opening is not None or self._clock.monotonic_s() < self._open_after_s:
            return False
        self._began_s = self._clock.monotonic_s()
        self._opening = self._edges.writing.submit(self._edges.sink.open)
        return True

    def hear(self) -> str | None:
        """Return the transactional id of a writer opened since the last call; None: there is no
        such writer. Raise ``KafkaEdgeError`` if opening failed.
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
        """Count a lost writer. From the second in a row on, delay the opening of the next one,
        twice as long each time, by ``_LOSS_REST_S_MAX`` at most.
        """
        now_s = self._clock.monotonic_s()
        self.losses = 1 if now_s - self._lost_s > _LOSSES_S else self.losses + 1
        self._lost_s = now_s
        if self.losses > 1:  # another node's take-over causes one loss
            rest_s = min(_LOSS_REST_S * 2**self.losses, _LOSS_REST_S_MAX)
            self._open_after_s = now_s + rest_s
