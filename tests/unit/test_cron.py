"""The calendar: cron expressions where clocks change."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from delayservice.contract.codes import RecordRefusedError
from delayservice.process.cron import cron_time

BERLIN = "Europe/Berlin"


def ms(text: str) -> int:
    """RFC 3339 to epoch milliseconds."""
    return int(datetime.fromisoformat(text).timestamp() * 1_000)


def test_the_next_match_is_after_and_not_at() -> None:
    assert cron_time("* * * * *", "UTC", ms("2026-01-01T09:00:00+00:00")) == ms(
        "2026-01-01T09:01:00+00:00"
    )
    assert cron_time("0 9 * * *", "UTC", ms("2026-01-01T09:00:00+00:00") - 1) == ms(
        "2026-01-01T09:00:00+00:00"
    )


@pytest.mark.parametrize(
    ("cron", "zone", "after", "expected"),
    [
        # Seconds come first where there are six fields.
        (
            *("*/20 * * * * *", "UTC", "2026-01-01T00:00:05+00:00"),
            ["01-01T00:00:20+00:00", "01-01T00:00:40+00:00", "01-01T00:01:00+00:00"],
        ),
        # Berlin, 29 March 2026: 02:00 to 03:00 does not exist, and is kept right after the gap.
        (
            *("30 2 * * *", BERLIN, "2026-03-28T03:00:00+01:00"),
            ["03-29T03:00:00+02:00", "03-30T02:30:00+02:00"],
        ),
        (
            *("0 * * * *", BERLIN, "2026-03-29T01:00:00+01:00"),
            ["03-29T03:00:00+02:00", "03-29T04:00:00+02:00"],
        ),
        # Berlin, 25 October 2026: 02:00 to 03:00 comes twice; a time of day is kept once.
        (
            *("30 2 * * *", BERLIN, "2026-10-24T03:00:00+02:00"),
            ["10-25T02:30:00+02:00", "10-26T02:30:00+01:00"],
        ),
        (
            *("0 * * * *", BERLIN, "2026-10-25T01:00:00+02:00"),
            ["10-25T02:00:00+02:00", "10-25T02:00:00+01:00", "10-25T03:00:00+01:00"],
        ),
    ],
)
def test_the_next_matches_where_clocks_change(
    cron: str, zone: str, after: str, expected: list[str]
) -> None:
    at_ms, found = ms(after), []
    for _ in expected:
        following_ms = cron_time(cron, zone, at_ms)
        assert following_ms is not None
        assert following_ms > at_ms
        at_ms = following_ms
        found.append(datetime.fromtimestamp(at_ms / 1_000, ZoneInfo(zone)).isoformat()[5:])
    assert found == expected


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
def test_what_means_nothing_is_refused_with_its_code(cron: str, zone: str, code: str) -> None:
    with pytest.raises(RecordRefusedError, match=code):
        cron_time(cron, zone, 0)


def test_what_lies_beyond_the_calendar_never_comes() -> None:
    for after_ms in (2**52, 253_402_300_799_000 - 1):
        for zone in ("UTC", BERLIN):
            assert cron_time("* * * * *", zone, after_ms) is None


@pytest.mark.parametrize("month", range(1, 13))
def test_a_time_that_never_comes_is_none(month: int) -> None:
    assert cron_time(f"0 0 */31 {month} MON#5", BERLIN, ms("2026-01-01T00:00:00+00:00")) is None
