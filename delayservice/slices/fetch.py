"""Read position in one partition's log, and reports of what a log has lost."""

from __future__ import annotations

from typing import Final

import structlog

from delayservice.engine.checkpoint import NOTHING_READ, LastRead, Lost
from delayservice.engine.ports import Place, Source

# Position of a client that has to seek before it reads.
NOWHERE: Final = -1


class Fetch:
    """Read position of the Kafka consumer in one partition: a source offset, or ``NOWHERE``."""

    def __init__(self, source: Source, place: Place) -> None:
        self.position = NOWHERE
        self.is_paused = False
        self.source = source
        self._place = place

    def go_to(self, offset: int, last_read: LastRead = NOTHING_READ) -> None:
        """Read from ``offset`` on. The last record below it reveals a truncated log."""
        self.source.seek(self._place, offset, last_read)
        self.position = offset

    def pause(self, *, is_paused: bool) -> None:
        if is_paused != self.is_paused:
            (self.source.pause if is_paused else self.source.resume)(self._place)
            self.is_paused = is_paused

    def let_go(self) -> None:
        """Stop reading, and end a pause."""
        self.pause(is_paused=False)
        if self.position != NOWHERE:
            self.source.drop(self._place)
            self.position = NOWHERE


_HINT: Final = (
    "retention deleted these offsets before they were settled: no node served the slice for longer "
    "than the topic keeps its records. What was stored of them is delivered, even if a record "
    "among them was to cancel or replace it; the others are lost. Raise retention.ms, or "
    "outage.allowance_ms with it"
)

_log = structlog.get_logger(__name__)


def report_lost(place: Place, lost: Lost) -> None:
    _log.error(
        "offsets_lost",
        topic=place[0],
        partition=place[1],
        first_offset=lost.first,
        stop_offset=lost.stop,
        hint=_HINT,
    )


def report_truncated(place: Place, consequence: str, **facts: int) -> None:
    _log.error(
        "log_truncated",
        topic=place[0],
        partition=place[1],
        **facts,
        hint="the log has lost records that were read before (unclean leader election, or "
        f"deleted records); {consequence}",
    )


def report_not_level(place: Place) -> None:
    _log.error(
        "level_topic_was_precise",
        topic=place[0],
        partition=place[1],
        hint="this level topic was a normal delay topic before, whose records may still be "
        "pending. Take it out of [levels] and give the level another topic (levels.prefix), or "
        "delete and create the topic again",
    )


# If the node or its store is new, this is no loss: pending records were rolled to later offsets.
def report_expired(place: Place, first: int, stop: int) -> None:
    _log.warning(
        "log_starts_later",
        topic=place[0],
        partition=place[1],
        first_offset=first,
        start=stop,
        hint="retention deleted these offsets before they were stored here; records that were "
        "still pending among them are lost to this copy, and so are cancels: what these have "
        "settled may come again from this copy. Compare with a replica",
    )
