"""Times of cron expressions in time zones. cronsim reads the expression; what an expression means
where clocks change is decided here.

Expressions whose minute or hour begins with ``*``, and those with seconds, match every instant at
which the local clock shows one of their times: a skipped time does not come, a repeated one comes
twice. All others match each of their times once: a skipped one at the end of the gap, a repeated
one when it is shown first.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from delayservice.contract.codes import CRON_INVALID, ZONE_INVALID, RecordRefusedError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_DAY: Final = timedelta(days=1)
# Largest number of results in each cache: most schedules share a few expressions and due times.
_CACHED: Final = 1_024
_FIELDS_WITH_SECONDS: Final = 6
# Years that are searched, as by cronsim.
_YEARS_MAX: Final = 50


@lru_cache(_CACHED)
def _zone(name: str) -> tzinfo:
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (KeyError, OSError, ValueError) as exc:  # unknown, a folder, or no name at all
        raise RecordRefusedError(
            ZONE_INVALID, f"{name!r} is not in the time zone database"
        ) from exc


# Next time of the clock that a cron expression matches. cronsim does not see a time zone here: its
# own rules return instants twice, or before ``local``, where clocks change.
def _after(cron: str, local: datetime) -> datetime | None:
    try:
        return next(CronSim(cron, local), None)
    except CronSimError as exc:
        raise RecordRefusedError(CRON_INVALID, f"{cron!r} is no cron expression: {exc}") from exc


# Whether an expression matches every instant at which the local clock shows one of its times.
def _is_shown(cron: str) -> bool:
    fields = cron.split()
    return len(fields) == _FIELDS_WITH_SECONDS or any(f.startswith("*") for f in fields[:2])


@lru_cache(_CACHED)
def cron_time(cron: str, zone: str, after_ms: int) -> int | None:
    """Return the first instant after ``after_ms`` that the cron expression matches in the time
    zone, both epoch ms; None: there is none within fifty years, as for the 30th of February, or it
    is beyond the calendar. ``RecordRefusedError`` has the code ``cron-invalid`` or
    ``zone-invalid``.
    """
    clock = _zone(zone)
    try:
        after = datetime.fromtimestamp(after_ms // 1_000, UTC)
        match = _next_shown if _is_shown(cron) else _next_once
        found = _after(cron, after) if clock is UTC else match(cron, clock, after)
        return None if found is None else int(found.timestamp()) * 1_000
    except (OverflowError, ValueError, OSError):  # beyond the calendar
        return None


def local_time(zone: str, at_ms: int) -> datetime:
    """Return the time of a zone's clock at ``at_ms``, epoch ms, with the zone's offset. Raise
    ``RecordRefusedError`` if there is no such zone.
    """
    return (_EPOCH + timedelta(milliseconds=at_ms)).astimezone(_zone(zone))


def is_skipped(cron: str, zone: str, due_ms: int) -> bool:
    """Return whether an occurrence of a cron expression, epoch ms, comes at the end of a gap,
    because clocks skip its time.
    """
    local = local_time(zone, due_ms).replace(tzinfo=None)
    return _after(cron, local - _SECOND) != local


def _next_once(cron: str, zone: tzinfo, after: datetime) -> datetime | None:
    wanted = _after(cron, _local(after, zone))
    while wanted is not None:
        shown = _instants(wanted, zone)
        found = shown[0] if shown else _end_of_gap(wanted, zone)
        if found > after:
            return found
        wanted = _after(cron, wanted)  # a repeated time, which was due when it was shown first
    return None


def _next_shown(cron: str, zone: tzinfo, after: datetime) -> datetime | None:
    found = _first_shown(cron, zone, _local(after, zone), after)
    if _offset(after + _DAY, zone) < _offset(after, zone):
        back = _change(after, after + _DAY, zone)
        if found is None or found >= back:  # times up to the present one are shown again
            return _first_shown(cron, zone, _local(back, zone) - _SECOND, back - _SECOND)
    return found


def _first_shown(cron: str, zone: tzinfo, local: datetime, after: datetime) -> datetime | None:
    wanted = _after(cron, local)
    # Each time that matches may lie in a gap: cronsim's limit holds for one search.
    while wanted is not None and wanted.year - local.year <= _YEARS_MAX:
        shown = _instants(wanted, zone)
        found = next((instant for instant in shown if instant > after), None)
        if found is not None:
            return found
        skipped = wanted if shown else _local(_end_of_gap(wanted, zone), zone) - _SECOND
        wanted = _after(cron, skipped)
    return None


def _local(instant: datetime, zone: tzinfo) -> datetime:
    return instant.astimezone(zone).replace(tzinfo=None)


def _offset(instant: datetime, zone: tzinfo) -> timedelta:
    return instant.astimezone(zone).utcoffset() or timedelta()


def _instants(local: datetime, zone: tzinfo) -> list[datetime]:
    """Return the instants at which the clock of a zone shows ``local``: one, two or none."""
    either = sorted({local.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1)})
    return [instant for instant in either if _local(instant, zone) == local]


def _end_of_gap(local: datetime, zone: tzinfo) -> datetime:
    late, early = (local.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    return _change(early, late, zone)


def _change(before: datetime, after: datetime, zone: tzinfo) -> datetime:
    while after - before > _SECOND:
        middle = before + (after - before) // (2 * _SECOND) * _SECOND
        if _offset(middle, zone) == _offset(before, zone):
            before = middle
        else:
            after = middle
    return after
