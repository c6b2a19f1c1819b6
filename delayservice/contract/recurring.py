"""Checks of the headers of a recurring schedule: their texts and bounds.

Whether a cron expression or a time zone is valid is checked later, by the owner's calendar.
"""

from __future__ import annotations

import re
from typing import Final

from delayservice.contract import names
from delayservice.contract.codes import CRON_INVALID, ZONE_INVALID, RecordRefusedError
from delayservice.contract.times import DUE_STOP_MS

EVERY_MS_MIN: Final = 1_000
"""Shortest period of a recurring schedule, ms; a shorter one is refused."""

_CRON = re.compile(rb"[0-9A-Za-z*/,#? -]{1,256}")
_ZONE = re.compile(rb"[0-9A-Za-z_+/-]{1,64}")
_TIMES_MAX: Final = 2**31


def parse_cron(value: bytes | None) -> str:
    """Return a cron expression; raise ``RecordRefusedError`` for characters that none can have."""
    if value is None or not _CRON.fullmatch(value):
        why = "is no cron expression of 256 characters at most"
        if value is not None and value.startswith(b"@"):
            why = "has no nicknames such as @daily: write five fields, as in 0 0 * * *"
        raise RecordRefusedError(CRON_INVALID, f"{names.DELAY_CRON} {why}")
    return value.decode()


def parse_zone(value: bytes | None) -> str:
    """Return a time zone's name; raise ``RecordRefusedError`` for characters that none can have."""
    if value is None or not _ZONE.fullmatch(value):
        raise RecordRefusedError(
            ZONE_INVALID, f"{names.DELAY_TIMEZONE} is no name of a time zone, as Europe/Berlin is"
        )
    return value.decode()


def check_times(times: int) -> int:
    """Return a number of occurrences; raise ``RecordRefusedError`` unless it is 1 to 2**31."""
    if not 1 <= times <= _TIMES_MAX:
        raise RecordRefusedError(
            CRON_INVALID, f"{names.DELAY_TIMES} is {times}: it must be 1 to {_TIMES_MAX}"
        )
    return times


def check_every(every_ms: int) -> int:
    """Return a period, ms; raise ``RecordRefusedError`` below ``EVERY_MS_MIN`` or if too long."""
    if not EVERY_MS_MIN <= every_ms < DUE_STOP_MS:
        raise RecordRefusedError(
            CRON_INVALID, f"{names.DELAY_EVERY} is {every_ms} ms: {EVERY_MS_MIN} is the least"
        )
    return every_ms
