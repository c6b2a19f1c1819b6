"""Log messages about records that a log has lost."""

from __future__ import annotations

from typing import Final

import structlog

from delayservice.engine.losses import Lost
from delayservice.engine.ports import Place

_HINT: Final = (
    "retention deleted these offsets before they were settled: no node served the slice for longer "
    "than the topic keeps its records. What was stored of them is delivered; the others, cancels "
    "among them, are lost. Raise retention.ms, or outage.allowance_ms with it"
)

_log = structlog.get_logger(__name__)


def report_lost(place: Place, lost: Lost) -> None:
    _log.error(
        "offsets_lost",
        topic=place[0],
        partition=place[1],
        first_offset=lost.first,
        stored_below=lost.unread,
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


# If the node or its store is new, pending records were rolled to later offsets.
def report_expired(place: Place, first: int, stop: int) -> None:
    _log.warning(
        "log_starts_later",
        topic=place[0],
        partition=place[1],
        first_offset=first,
        start=stop,
        hint="retention deleted these offsets before they were stored here; records that were "
        "still pending among them are lost to this copy: compare with a replica",
    )
