"""The calendar; where clocks change is in ``test_cron_zones``."""

from __future__ import annotations

from datetime import datetime

import pytest

from delayservice.contract.codes import RecordRefusedError
from delayservice.contract.cron import cron_time

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
