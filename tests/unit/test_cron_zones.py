"""Cron times around every change of clocks of five years in all zones, against an oracle that looks
at each minute.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from delayservice.contract.cron import cron_time

START, END = datetime(2024, 1, 1, tzinfo=UTC), datetime(2029, 1, 1, tzinfo=UTC)
DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)
BEFORE, AFTER = 4 * HOUR, 30 * HOUR
ASKED_EVERY: Final = 13
"""A prime number of minutes, so that all minutes of the hour are asked about."""


class Schedule(NamedTuple):
    """A cron expression for all days, and what it means."""

    cron: str
    minutes: range | tuple[int, ...]
    hours: range | tuple[int, ...]
    is_shown: bool
    """True: due whenever the clock shows it; False: due once."""


ANY_HOUR: Final = range(24)
SCHEDULES: Final = (
    Schedule("0 * * * *", (0,), ANY_HOUR, is_shown=True),
    Schedule("30 * * * *", (30,), ANY_HOUR, is_shown=True),
    Schedule("0 */2 * * *", (0,), range(0, 24, 2), is_shown=True),
    Schedule("*/20 * * * *", range(0, 60, 20), ANY_HOUR, is_shown=True),
    Schedule("* 1-3 * * *", range(60), range(1, 4), is_shown=True),
    Schedule("0 0 2 * * *", (0,), (2,), is_shown=True),
    Schedule("0 0 * * *", (0,), (0,), is_shown=False),
    Schedule("15 2 * * *", (15,), (2,), is_shown=False),
    Schedule("45 1,2,23 * * *", (45,), (1, 2, 23), is_shown=False),
    Schedule("5-55/10 0-23/2 * * *", range(5, 60, 10), range(0, 24, 2), is_shown=False),
)


def local(instant: datetime, zone: ZoneInfo) -> datetime:
    return instant.astimezone(zone).replace(tzinfo=None)


def changes() -> Iterator[tuple[str, datetime]]:
    """Yield a zone for each different change of clocks, and an hour in which it is."""
    known = set()
    for name in sorted(available_timezones() - {"localtime"}):
        zone, day = ZoneInfo(name), START
        while day < END:
            before, after = (local(at, zone) - at.replace(tzinfo=None) for at in (day, day + DAY))
            if before != after:
                hours = (day + n * HOUR for n in range(24))
                hour = next(h for h in hours if local(h + HOUR, zone) - local(h, zone) != HOUR)
                if (hour, before, after) not in known:
                    known.add((hour, before, after))
                    yield name, hour
            day += DAY


def expected(schedule: Schedule, shown: list[tuple[datetime, datetime]]) -> list[datetime]:
    """Return the instants at which a schedule is due. ``shown``: each minute, and the local time
    that the clock shows then.
    """

    def is_match(at: datetime) -> bool:
        return at.minute in schedule.minutes and at.hour in schedule.hours

    if schedule.is_shown:
        return [instant for instant, at in shown if is_match(at)]
    due, latest = [], shown[0][1] - MINUTE
    for instant, at in shown:
        came = [latest + n * MINUTE for n in range(1, (at - latest) // MINUTE + 1)]
        if any(map(is_match, came)):
            due.append(instant)
        latest = max(latest, at)
    return due


def test_every_change_of_clocks_is_met_as_the_contract_says() -> None:
    wrong, seen = [], 0
    for name, hour in changes():
        zone = ZoneInfo(name)
        minutes = [hour - BEFORE + n * MINUTE for n in range((BEFORE + AFTER) // MINUTE)]
        shown = [(instant, local(instant, zone)) for instant in minutes]
        for schedule in SCHEDULES:
            due_ms = [int(at.timestamp()) * 1_000 for at in expected(schedule, shown)]
            for after in minutes[: 2 * BEFORE // MINUTE : ASKED_EVERY]:
                after_ms = int(after.timestamp()) * 1_000
                right_ms = due_ms[bisect_right(due_ms, after_ms)]
                seen += 1
                if cron_time(schedule.cron, name, after_ms) != right_ms:
                    wrong.append((schedule.cron, name, str(after)))
    assert seen > 50_000
    assert wrong == []
