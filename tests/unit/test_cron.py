"""The calendar, and where clocks change."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

import pytest

from delayservice.contract.codes import RecordRefusedError
from delayservice.contract.cron import cron_time

BERLIN = "Europe/Berlin"


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1_000)


def test_the_next_match_is_after_and_not_at() -> None:
    assert cron_time("* * * * *", "UTC", ms("2026-01-01T09:00:00+00:00")) == ms(
        "2026-01-01T09:01:00+00:00"
    )
    assert cron_time("0 9 * * *", "UTC", ms("2026-01-01T09:00:00+00:00") - 1) == ms(
        "2026-01-01T09:00:00+00:00"
    )


def test_seconds_come_first_where_there_are_six_fields() -> None:
    at_ms, found = ms("2026-01-01T00:00:05+00:00"), []
    for _ in range(3):
        following_ms = cron_time("*/20 * * * * *", "UTC", at_ms)
        assert following_ms is not None
        found.append((following_ms - at_ms) // 1_000)
        at_ms = following_ms
    assert found == [15, 20, 20]


def test_some_days_never_come() -> None:
    assert cron_time("0 0 31 2 MON,TUE", "UTC", ms("2026-01-01T00:00:00+00:00")) is not None
    with pytest.raises(RecordRefusedError, match="cron-invalid"):
        cron_time("0 0 31 2 *", "UTC", 0)


@pytest.mark.parametrize(
    ("cron", "zone", "code"),
    [
        ("* * * *", "UTC", "cron-invalid"),
        ("61 * * * *", "UTC", "cron-invalid"),
        ("hourly", "UTC", "cron-invalid"),
        ("* * * * *", "Mars/Olympus", "zone-invalid"),
        ("* * * * *", "Europe", "zone-invalid"),
        ("* * * * *", "../../etc/passwd", "zone-invalid"),
    ],
)
def test_invalid_cron_or_zone_gets_its_error_code(cron: str, zone: str, code: str) -> None:
    with pytest.raises(RecordRefusedError, match=code):
        cron_time(cron, zone, 0)


def test_occurrences_after_the_year_9999_never_come() -> None:
    for after_ms in (2**52, 253_402_300_799_000 - 1):
        for zone in ("UTC", BERLIN):
            assert cron_time("* * * * *", zone, after_ms) is None


@pytest.mark.parametrize("month", range(1, 13))
def test_a_time_that_never_comes_is_none(month: int) -> None:
    assert cron_time(f"0 0 */31 {month} MON#5", BERLIN, ms("2026-01-01T00:00:00+00:00")) is None


# --- cron times around every change of clocks of five years in all zones, against an oracle that lo


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
