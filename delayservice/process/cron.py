"""Times of cron expressions in time zones, by the rules of Debian's cron (cronsim).

Where clocks are set forward, a time of day that does not exist moves to the end of the gap. Where
they are set back, a time of day that comes twice matches once. Expressions whose minute or hour
begins with ``*``, and those with seconds, follow elapsed time instead: they match every hour that
passes.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from delayservice.contract.codes import CRON_INVALID, ZONE_INVALID, RecordRefusedError

_SECOND_MS = 1_000
_CACHED = 1_024
"""Largest number of results in each cache: most schedules share a few expressions and due times."""


_barren: set[tuple[str, str]] = set()
"""Pairs of cron expression and time zone that never match an instant."""


@lru_cache(_CACHED)
def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError) as exc:  # unknown, a folder, or no name at all
        raise RecordRefusedError(
            ZONE_INVALID, f"{name!r} is not in the time zone database"
        ) from exc


@lru_cache(_CACHED)
def cron_time(cron: str, zone: str, after_ms: int) -> int | None:
    """Return the first instant after ``after_ms`` that the cron expression matches in the time
    zone, both epoch milliseconds; None: there is none within fifty years, so it never matches, as
    for the 30th of February, or it is beyond the calendar.

    Raises:
        RecordRefusedError: with code ``cron-invalid`` or ``zone-invalid``.
    """
    local = UTC if zone == "UTC" else _zone(zone)
    if (cron, zone) in _barren:
        return None
    try:
        after = datetime.fromtimestamp(after_ms // _SECOND_MS, local)
        found = next(CronSim(cron, after))
    except CronSimError as exc:
        raise RecordRefusedError(CRON_INVALID, f"{cron!r} is no cron expression: {exc}") from exc
    except StopIteration:  # no match in fifty years, so never; the search takes a tenth of a second
        if len(_barren) >= _CACHED:
            _barren.clear()
        _barren.add((cron, zone))
        return None
    except (OverflowError, ValueError, OSError):  # beyond the calendar
        return None
    return int(found.timestamp()) * _SECOND_MS
