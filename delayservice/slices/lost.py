"""Reports offsets that H skips, for retention deleted them before anybody had walked them."""

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
    """Log a range of offsets that is lost, once for each take-over that skips it."""
    _log.error(
        "offsets_lost",
        topic=place[0],
        partition=place[1],
        first_offset=lost.first,
        stored_below=lost.unread,
        stop_offset=lost.stop,
        hint=_HINT,
    )
