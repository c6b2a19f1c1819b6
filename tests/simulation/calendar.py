"""A calendar in milliseconds, for cron schedules that come often enough to be simulated.

Each node has one of its own, which differs by a little: two nodes may have time zones of different
years (design rule 2).
"""

from __future__ import annotations

from delayservice.contract.codes import CRON_INVALID, RecordRefusedError
from delayservice.contract.recurrence import CronTime

NEVER, BAD = "never", "bad"
SHIFTS_MS = (0, 7)
"""By how much each node's calendar is off."""


def make_calendar(shift_ms: int) -> CronTime:
    """``*/N`` matches every N ms, ``never`` nothing; ``bad`` is no expression."""

    def cron_time(cron: str, zone: str, after_ms: int) -> int | None:
        assert zone == "UTC"
        if cron == BAD:
            raise RecordRefusedError(CRON_INVALID, "means nothing")
        if cron == NEVER:
            return None
        step_ms = int(cron.removeprefix("*/"))
        return after_ms + step_ms - (after_ms - shift_ms) % step_ms

    return cron_time


def instants_after(cron: str, after_ms: int) -> set[int | None]:
    """What the calendars may say, each for itself."""
    if cron in (BAD, NEVER):
        return {None}
    return {make_calendar(shift_ms)(cron, "UTC", after_ms) for shift_ms in SHIFTS_MS}
