"""Active pauses for metrics and status, limited in number and size."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from delayservice.engine.pauses import KINDS, Pauses
from delayservice.metrics.counts import PauseFacts
from delayservice.metrics.status import Pause

# Pauses shown one by one, because each is a time series in Prometheus.
PAUSES_TOLD_MAX: Final = 200
_REASON_CHARS_MAX: Final = 200
# Latest start of a pause, epoch milliseconds: the end of the year 9999.
_AT_MS_MAX: Final = 253_402_300_799_999
# A legal topic name, or a pattern of topic names.
_NAME: Final = re.compile(r"[A-Za-z0-9._*?-]{1,249}")


def pause_facts(pauses: Pauses | None) -> PauseFacts | None:
    """Return the longest pauses, ``PAUSES_TOLD_MAX`` at most, and the number of all pauses by kind;
    None: the pauses topic has not been read yet.
    """
    if pauses is None:
        return None
    found = [
        Pause(
            paused.kind,
            paused.name,
            min(max(pause.at_ms, 0), _AT_MS_MAX),
            pause.reason[:_REASON_CHARS_MAX],
        )
        for paused, pause in pauses.all.items()
    ]
    found.sort(key=lambda pause: (pause.at_ms, pause.kind, pause.name))
    told = [pause for pause in found if _NAME.fullmatch(pause.name)][:PAUSES_TOLD_MAX]
    names = {(pause.kind, pause.name) for pause in told}
    others = [pause.at_ms for pause in found if (pause.kind, pause.name) not in names]
    counts = Counter(paused.kind for paused in pauses.all)
    return PauseFacts(told, {kind: counts[kind] for kind in KINDS}, min(others, default=None))
