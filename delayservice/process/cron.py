"""Times of cron expressions in time zones. cronsim reads the expression; what an expression means
where clocks change is decided here.

Expressions whose minute or hour begins with ``*``, and those with seconds, match every instant at
which the local clock shows one of their times: a skipped time does not come, a repeated one comes
twice. All others match each of their times once: a skipped one at the end of the gap, a repeated
one when it is shown first.
"""

from __future__ import annotations

import calendar
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from delayservice.contract.codes import CRON_INVALID, ZONE_INVALID, RecordRefusedError

_SECOND: Final = timedelta(seconds=1)
_DAY: Final = timedelta(days=1)
# Largest number of results in each cache: most schedules share a few expressions and due times.
_CACHED: Final = 1_024
# Length of the search for a match, months.
_MONTHS_MAX: Final = 50 * 12
_FIELDS_WITH_SECONDS: Final = 6
_ANY_DAY: Final = datetime(2000, 1, 1)  # noqa: DTZ001  # cronsim only reads fields here


@lru_cache(_CACHED)
def _zone(name: str) -> tzinfo:
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (KeyError, OSError, ValueError) as exc:  # unknown, a folder, or no name at all
        raise RecordRefusedError(
            ZONE_INVALID, f"{name!r} is not in the time zone database"
        ) from exc


class _Days:
    """Days that the three day fields of cron expressions match. Many expressions share them, and
    finding them is most of the work.
    """

    def __init__(self, fields: Sequence[str]) -> None:
        self._read = CronSim(" ".join(("0", "0", *fields)), _ANY_DAY)
        self._by_kind: dict[tuple[int, int], list[int]] = {}

    def of(self, year: int, month: int) -> list[int]:
        # They follow from its length and the weekday of its first day, so there are 28 kinds of
        # months.
        if month not in self._read.months:
            return []
        kind = calendar.monthrange(year, month)
        found = self._by_kind.get(kind)
        if found is None:
            days = (date(year, month, number) for number in range(1, kind[1] + 1))
            found = self._by_kind[kind] = [d.day for d in days if self._read.match_day(d)]
        return found

    def after(self, day: date) -> date | None:
        first = 12 * day.year + day.month - 1
        after = day.day
        for number in range(first, first + _MONTHS_MAX):
            year, month = divmod(number, 12)
            for found in self.of(year, month + 1):
                if found > after:
                    return date(year, month + 1, found)
            after = 0
        return None


_days = lru_cache(_CACHED)(_Days)


class _Expression:
    """Times of the clock that a cron expression matches."""

    def __init__(self, cron: str) -> None:
        read, fields = CronSim(cron, _ANY_DAY), cron.split()
        self._days = _days(tuple(fields[-3:]))
        self._hours, self._minutes = sorted(read.hours), sorted(read.minutes)
        self._seconds = sorted(read.seconds)
        self._first = time(self._hours[0], self._minutes[0], self._seconds[0])
        # Whether it matches every instant at which the local clock shows one of its times.
        self.is_shown = len(fields) == _FIELDS_WITH_SECONDS or "*" in (fields[0][0], fields[1][0])

    def after(self, local: datetime) -> datetime | None:
        start = local + _SECOND
        if start.day in self._days.of(start.year, start.month):
            found = self._time_from(start.hour, start.minute, start.second)
            if found is not None:
                return datetime.combine(start, found, start.tzinfo)
        day = self._days.after(start)
        return None if day is None else datetime.combine(day, self._first, start.tzinfo)

    def _time_from(self, hour: int, minute: int, second: int) -> time | None:
        for h in self._hours:
            if h > hour:
                return time(h, self._minutes[0], self._seconds[0])
            if h == hour:
                for m in self._minutes:
                    if m > minute:
                        return time(h, m, self._seconds[0])
                    s = next((s for s in self._seconds if s >= second), None)
                    if m == minute and s is not None:
                        return time(h, m, s)
        return None


@lru_cache(_CACHED)
def _expression(cron: str) -> _Expression:
    try:
        return _Expression(cron)
    except CronSimError as exc:
        raise RecordRefusedError(CRON_INVALID, f"{cron!r} is no cron expression: {exc}") from exc


@lru_cache(_CACHED)
def cron_time(cron: str, zone: str, after_ms: int) -> int | None:
    """Return the first instant after ``after_ms`` that the cron expression matches in the time
    zone, both epoch ms; None: there is none within fifty years, as for the 30th of February, or it
    is beyond the calendar. ``RecordRefusedError`` has the code ``cron-invalid`` or
    ``zone-invalid``.
    """
    clock, expression = _zone(zone), _expression(cron)
    match = _next_shown if expression.is_shown else _next_once
    try:
        after = datetime.fromtimestamp(after_ms // 1_000, UTC)
        found = expression.after(after) if clock is UTC else match(expression, clock, after)
        return None if found is None else int(found.timestamp()) * 1_000
    except (OverflowError, ValueError, OSError):  # beyond the calendar
        return None


def _next_once(expression: _Expression, zone: tzinfo, after: datetime) -> datetime | None:
    wanted = expression.after(_local(after, zone))
    while wanted is not None:
        shown = _instants(wanted, zone)
        found = shown[0] if shown else _end_of_gap(wanted, zone)
        if found > after:
            return found
        wanted = expression.after(wanted)  # a repeated time, which was due when it was shown first
    return None


def _next_shown(expression: _Expression, zone: tzinfo, after: datetime) -> datetime | None:
    found = _first_shown(expression, zone, _local(after, zone), after)
    if _offset(after + _DAY, zone) < _offset(after, zone):
        back = _change(after, after + _DAY, zone)
        if found is None or found >= back:  # times up to the present one are shown again
            return _first_shown(expression, zone, _local(back, zone) - _SECOND, back - _SECOND)
    return found


def _first_shown(
    expression: _Expression, zone: tzinfo, local: datetime, after: datetime
) -> datetime | None:
    wanted = expression.after(local)
    while wanted is not None:
        shown = _instants(wanted, zone)
        found = next((instant for instant in shown if instant > after), None)
        if found is not None:
            return found
        skipped = wanted if shown else _local(_end_of_gap(wanted, zone), zone) - _SECOND
        wanted = expression.after(skipped)
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
