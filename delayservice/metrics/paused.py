"""The pauses that metrics and status show: bounded, whatever the topic holds."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from delayservice.engine.pauses import KINDS, Pause, Paused, Pauses
from delayservice.metrics.counts import PauseFact, PauseFacts

PAUSES_TOLD_MAX: Final = 200
"""How many pauses are shown one by one: each is a series in Prometheus."""
_REASON_CHARS_MAX: Final = 200
_AT_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999. A row that is written by hand may say anything."""
_NAME: Final = re.compile(r"[A-Za-z0-9._*?-]{1,249}")
"""A legal topic name, or a pattern of such."""


def pause_facts(pauses: Pauses | None) -> PauseFacts | None:
    """Return the longest pauses one by one, and the number of all others; None: it is not known yet
    what is paused.
    """
    if pauses is None:
        return None
    facts = sorted(
        (_fact(paused, pause) for paused, pause in pauses.all.items()),
        key=lambda fact: (fact.at_ms, fact.kind, fact.name),
    )
    told = [fact for fact in facts if _NAME.fullmatch(fact.name)][:PAUSES_TOLD_MAX]
    names = {(fact.kind, fact.name) for fact in told}
    others = [fact.at_ms for fact in facts if (fact.kind, fact.name) not in names]
    counts = Counter(paused.kind for paused in pauses.all)
    return PauseFacts(told, {kind: counts[kind] for kind in KINDS}, min(others, default=None))


def _fact(paused: Paused, pause: Pause) -> PauseFact:
    at_ms = min(max(pause.at_ms, 0), _AT_MS_MAX)
    return PauseFact(paused.kind, paused.name, at_ms, pause.reason[:_REASON_CHARS_MAX])
