"""Position of the Kafka consumer in one log, and whether fetching is paused there."""

from __future__ import annotations

from typing import Final

from delayservice.engine.checkpoint import NOTHING_READ, LastRead
from delayservice.engine.ports import Place, Source

NOWHERE: Final = -1
"""Value of ``Fetch.position`` when a seek is needed before the next read."""


class Fetch:
    """Position and pause of the Kafka consumer at one log.

    Attributes:
        position: the offset of the next record, or ``NOWHERE``.
        is_paused: whether fetching is paused.
        source: the slice's logs.
    """

    def __init__(self, source: Source, place: Place) -> None:
        self.position = NOWHERE
        self.is_paused = False
        self.source = source
        self._place = place

    def go_to(self, offset: int, last_read: LastRead = NOTHING_READ) -> None:
        """Read from ``offset`` on. ``last_read``: the last record below it, if it was read."""
        self.source.seek(self._place, offset, last_read)
        self.position = offset

    def pause(self, *, is_paused: bool) -> None:
        """Pause or resume fetching."""
        if is_paused != self.is_paused:
            (self.source.pause if is_paused else self.source.resume)(self._place)
            self.is_paused = is_paused

    def let_go(self) -> None:
        """Stop reading this log. A pause is ended first, because the client would remember it."""
        self.pause(is_paused=False)
        if self.position != NOWHERE:
            self.source.drop(self._place)
            self.position = NOWHERE
