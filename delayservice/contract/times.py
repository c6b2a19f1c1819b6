"""Parsers of instants, delays and recurrences as users write them, and the even spreading of
records over a span of time, which avoids peaks of load. Times are whole milliseconds.

They use regular expressions and integer arithmetic of this project, because a record's key depends
on them: a library that parses differently after an upgrade would change existing keys (design rule
2). Fractions of a millisecond are rounded up, so that no delivery is early. Whether a cron
expression or a time zone is valid is checked later, when the owner computes an occurrence.

Sources: RFC 3339 section 5.6; ISO 8601-1 durations, weeks to seconds.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from delayservice.contract import names
from delayservice.contract.codes import (
    CRON_INVALID,
    TIME_INVALID,
    ZONE_INVALID,
    RecordRefusedError,
)

DUE_STOP_MS = 2**53
"""Exclusive bound of due times, epoch ms, exact in JSON and in doubles. Parsers return it in place
of any larger value."""

# Smallest number that is surely meant as epoch milliseconds, not as epoch seconds.
SURELY_MS: Final = 100_000_000_000
# 1970 to 1973 as milliseconds, but 1973 to 5138 as epoch seconds.
SECONDS_LIKE: Final = range(100_000_000, SURELY_MS)

_DIGITS_MAX = 16
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)

# RFC 3339, and what libraries leave out where it is zero: seconds (Java's ``OffsetDateTime``) and
# the minutes of the offset (PostgreSQL).
_RFC3339 = re.compile(
    rb"(\d{4}-\d\d-\d\d)[Tt ]((?:[01]\d|2[0-3]):[0-5]\d)(?::([0-5]\d)(?:\.(\d+))?)?"
    rb"([Zz]|[+-](?:[01]\d|2[0-3])(?::[0-5]\d)?)"
)
_DURATION = re.compile(
    rb"P(?=\d|T\d)(?:(\d+)W)?(?:(\d+)D)?"
    rb"(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:[.,](\d+))?S)?)?"
)
_PART = re.compile(rb"(\d+)(?:\.(\d+))?(ms|[smhdwy])")
_PARTS = re.compile(rb"(?:\d+(?:\.\d+)?(?:ms|[smhdwy]))+")
_PART_MS = {
    b"ms": 1,
    b"s": 1_000,
    b"m": 60_000,
    b"h": 3_600_000,
    b"d": 86_400_000,
    b"w": 604_800_000,
    b"y": 31_536_000_000,
}
_DURATION_EXPECTED = "milliseconds, 30s, 1h30m or an ISO 8601 duration (PT30S) is expected"
_FRACTION_DIGITS = 32
_CALENDAR = re.compile(rb"P\d+(?:Y.*|M.*)")
_UNIT_MS = (604_800_000, 86_400_000, 3_600_000, 60_000, 1_000)

# A shorter period of a recurring schedule is refused.
EVERY_MS_MIN: Final = 1_000

# As in crontab(5).
_NICKNAMES: Final = {
    b"@hourly": "0 * * * *",
    b"@daily": "0 0 * * *",
    b"@midnight": "0 0 * * *",
    b"@weekly": "0 0 * * 0",
    b"@monthly": "0 0 1 * *",
    b"@yearly": "0 0 1 1 *",
    b"@annually": "0 0 1 1 *",
}
_CRON = re.compile(rb"[0-9A-Za-z*/,#? -]{1,256}")
_ZONE = re.compile(rb"[0-9A-Za-z_+/-]{1,64}")
_TIMES_MAX: Final = 2**31


def parse_count(name: str, value: bytes | None) -> int:
    """Return a header's number, at most ``DUE_STOP_MS``; refuse all but ASCII digits."""
    if value is None or not value.isdigit():
        raise _refused(name, value, "decimal digits are expected")
    return _bounded(value)


def parse_instant_ms(name: str, value: bytes | None) -> int:
    """Return an instant, epoch ms, ``DUE_STOP_MS`` at most, negative before 1970. The value is
    epoch milliseconds, or RFC 3339 with an offset, where seconds and the offset's minutes may be
    left out. Raise ``RecordRefusedError`` (``time-invalid``) for any other text.
    """
    if value is not None and value.isdigit():
        return _bounded(value)
    match = _RFC3339.fullmatch(value or b"")
    if match is None:
        raise _refused(
            name, value, "epoch milliseconds or RFC 3339 with Z or an offset is expected"
        )
    date, clock, seconds, fraction, zone = match.groups()
    offset = b"+00:00" if zone in b"Zz" else zone if b":" in zone else zone + b":00"
    text = date + b"T" + clock + b":" + (seconds or b"00") + offset
    try:
        instant = datetime.fromisoformat(text.decode("ascii"))
    except ValueError as exc:
        raise _refused(name, value, "there is no such date") from exc
    return (instant - _EPOCH) // _MILLISECOND + _fraction_ms(fraction)


def parse_checked_instant_ms(name: str, value: bytes | None) -> int:
    """Return an instant as ``parse_instant_ms`` does; refuse a number that looks like seconds."""
    instant_ms = parse_instant_ms(name, value)
    is_number = value is not None and value.isdigit()
    return check_is_ms(name, instant_ms) if is_number else instant_ms


def check_is_ms(name: str, instant_ms: int) -> int:
    if instant_ms in SECONDS_LIKE:
        raise RecordRefusedError(
            TIME_INVALID,
            f"{name} is {instant_ms}, which looks like seconds: epoch milliseconds are expected "
            f"({instant_ms * 1_000})",
        )
    return instant_ms


def parse_duration_ms(name: str, value: bytes | None) -> int:
    """Return a delay, ms, 0 to ``DUE_STOP_MS``. The value is milliseconds, an ISO 8601 duration of
    weeks to seconds, or numbers with units from ``ms`` to ``y`` (``1h30m``); a year has 365 days.
    Years and months of ISO 8601 are refused: their length depends on a calendar and a time zone.
    Raise ``RecordRefusedError`` (``time-invalid``) for any other text.
    """
    if value is not None and value.isdigit():
        return _bounded(value)
    if _PARTS.fullmatch(value or b""):
        return min(sum(_part_ms(*part) for part in _PART.findall(value or b"")), DUE_STOP_MS)
    match = _DURATION.fullmatch(value or b"")
    if match is None:
        if _CALENDAR.fullmatch(value or b""):
            raise _refused(name, value, "years and months have no fixed length, use days")
        raise _refused(name, value, _DURATION_EXPECTED)
    *counts, fraction = match.groups()
    total = sum(
        _bounded(count) * unit for count, unit in zip(counts, _UNIT_MS, strict=True) if count
    )
    return min(total + _fraction_ms(fraction), DUE_STOP_MS)


def parse_cron(value: bytes | None) -> str:
    """Return a cron expression, of which only characters and length are checked here. A nickname is
    returned as its five fields.
    """
    if value in _NICKNAMES:
        return _NICKNAMES[value]
    if value is None or not _CRON.fullmatch(value):
        why = "is no cron expression of 256 characters at most"
        if value is not None and value.startswith(b"@"):
            why = f"has no such nickname: write five fields, or {b', '.join(_NICKNAMES).decode()}"
        raise RecordRefusedError(CRON_INVALID, f"{names.DELAY_CRON} {why}")
    return value.decode()


def parse_zone(value: bytes | None) -> str:
    """Return a time zone's name, of which only characters and length are checked here."""
    if value is None or not _ZONE.fullmatch(value):
        raise RecordRefusedError(
            ZONE_INVALID, f"{names.DELAY_TIMEZONE} is no name of a time zone, as Europe/Berlin is"
        )
    return value.decode()


def check_times(times: int) -> int:
    if not 1 <= times <= _TIMES_MAX:
        raise RecordRefusedError(
            CRON_INVALID, f"{names.DELAY_TIMES} is {times}: it must be 1 to {_TIMES_MAX}"
        )
    return times


def check_every(every_ms: int) -> int:
    if not EVERY_MS_MIN <= every_ms < DUE_STOP_MS:
        raise RecordRefusedError(
            CRON_INVALID, f"{names.DELAY_EVERY} is {every_ms} ms: {EVERY_MS_MIN} is the least"
        )
    return every_ms


def _part_ms(whole: bytes, digits: bytes, unit: bytes) -> int:
    unit_ms = _PART_MS[unit]
    scaled = unit_ms * int(digits[:_FRACTION_DIGITS].ljust(_FRACTION_DIGITS, b"0"))
    scaled += 1 if digits[_FRACTION_DIGITS:].strip(b"0") else 0
    part_ms: int = -(-scaled // 10**_FRACTION_DIGITS)
    return _bounded(whole) * unit_ms + part_ms


_DURATION_HINT = "write a duration with its unit, as 500ms, 30s, 1h30m, 10y or PT30S"
_INSTANT_HINT = (
    "write a time as RFC 3339 with Z or an offset (2030-01-31T08:00:00Z), epoch milliseconds, "
    "now, now+10m, +10m or -2h"
)
_RELATIVE = re.compile(r"(?:now)?\s*([+-])\s*(\S+)")


def read_duration_ms(text: str) -> int:
    """Return the milliseconds of a duration as people write it: with a unit, as ``1h30m`` or
    ``PT30S``, or ``0``. The message of the ``ValueError`` says how to write one.
    """
    found = text.strip()
    if found.isdecimal() and int(found):
        raise ValueError(f"{text!r} has no unit: {found}s or {found}ms? {_DURATION_HINT}")
    try:
        return parse_duration_ms("it", found.encode())
    except RecordRefusedError as exc:
        raise ValueError(f"{text!r} is no duration: {_DURATION_HINT}") from exc


def read_instant_ms(text: str, now_ms: int) -> int:
    """Return the epoch milliseconds, 0 to ``DUE_STOP_MS``, of an instant as people write it: RFC
    3339 with ``Z`` or an offset, epoch milliseconds, ``now``, or a duration after or before
    ``now_ms`` (``+10m``, ``now-2h``). The message of the ``ValueError`` says how to write one.
    """
    found = text.strip()
    if found == "now":
        return now_ms
    signed = _RELATIVE.fullmatch(found)
    try:
        if signed is None:
            instant_ms = parse_checked_instant_ms("the time", found.encode())
        else:
            ahead_ms = read_duration_ms(signed[2])
            instant_ms = now_ms + ahead_ms if signed[1] == "+" else now_ms - ahead_ms
    except RecordRefusedError as exc:
        why = exc.detail if found.isdecimal() else f"{text!r} is no time: {_INSTANT_HINT}"
        raise ValueError(why) from exc
    return min(max(instant_ms, 0), DUE_STOP_MS)


# Unlike ``int``, it reads texts of any length, in linear time.
def _bounded(digits: bytes) -> int:
    if len(digits) > _DIGITS_MAX:
        digits = digits.lstrip(b"0") or b"0"
    return DUE_STOP_MS if len(digits) > _DIGITS_MAX else min(int(digits), DUE_STOP_MS)


# Rounded up.
def _fraction_ms(digits: bytes | None) -> int:
    if not digits:
        return 0
    return int(digits[:3].ljust(3, b"0")) + (1 if digits[3:].strip(b"0") else 0)


def _refused(name: str, value: bytes | None, expected: str) -> RecordRefusedError:
    shown = "no value" if value is None else repr(value[:64])[1:]
    return RecordRefusedError(TIME_INVALID, f"{name} is {shown}: {expected}")


# Every node must compute the same key for a record (design rule 2), so the spread never changes.
# The factor is 2**32 divided by the golden ratio: neighbouring offsets land far apart (Knuth,
# volume 3, 6.4).
_FACTOR: Final = 2_654_435_761
_BITS: Final = 32
_MASK: Final = (1 << _BITS) - 1


def spread_ms(offset: int, span_ms: int) -> int:
    """Return 0 to ``span_ms``, both included, evenly spread over source offsets."""
    return ((offset * _FACTOR & _MASK) * (span_ms + 1)) >> _BITS
