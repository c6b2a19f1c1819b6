"""Checks of the arguments of a client's request, and the input headers for it. Pure: nothing is
sent here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import lru_cache, partial
from typing import Final, Literal, TypeAlias, TypedDict, TypeVar

from delayservice.base.errors import InvalidRequestError
from delayservice.contract import names
from delayservice.contract.codes import RecordRefusedError
from delayservice.contract.input_headers import RESERVED
from delayservice.contract.names import is_legal_topic, is_reserved
from delayservice.contract.times import (
    DUE_STOP_MS,
    check_every,
    check_is_ms,
    check_times,
    parse_checked_instant_ms,
    parse_cron,
    parse_duration_ms,
    parse_zone,
)

Text: TypeAlias = bytes | str

Delay: TypeAlias = timedelta | int | str
"""Length of time: a ``timedelta``, a number of milliseconds, or a text: digits (milliseconds),
units (``30s``, ``1h30m``), or ISO 8601 with weeks to seconds (``PT30S``)."""

Instant: TypeAlias = datetime | int | str
"""Point in time: a ``datetime`` with a time zone, a number of epoch milliseconds (one that looks
like seconds is refused), or a text: such a number, or RFC 3339 with ``Z`` or an offset."""

Header: TypeAlias = tuple[str, bytes | str | None]
OwnHeaders: TypeAlias = Iterable[Header] | Mapping[str, bytes | str | None]


class _NoKey(Enum):
    NO_KEY = "no key"


NO_KEY: Final = _NoKey.NO_KEY
"""Value of ``target_key`` for an output without a key, even if the record has one."""

TargetKey: TypeAlias = Text | Literal[_NoKey.NO_KEY] | None

Given = TypeVar("Given")
Read = TypeVar("Read")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_PARTITION_MAX: Final = 2**31 - 1


class When(TypedDict, total=False):
    """Keyword arguments of ``when_headers`` and of ``DelayProducer.send``."""

    delay: Delay | None
    at: Instant | None
    expires_at: Instant | None
    window: Delay | None
    every: Delay | None
    cron: str | None
    timezone: str | None
    times: int | None


def when_headers(
    *,
    delay: Delay | None = None,
    at: Instant | None = None,
    expires_at: Instant | None = None,
    window: Delay | None = None,
    every: Delay | None = None,
    cron: str | None = None,
    timezone: str | None = None,
    times: int | None = None,
) -> list[Header]:
    """Return the input headers for the due time, expiry, window and recurrence.

    Args:
        delay: delay from the moment the broker appends the record; a fraction of a millisecond is
            rounded up.
        at: the due time; a fraction of a millisecond is rounded up. Give either ``delay`` or
            ``at``; a recurring schedule needs neither.
        expires_at: instant after which the record is expired instead of delivered.
        window: time after the due time over which deliveries may be spread.
        every: period of a recurring schedule, 1 s or more.
        cron: cron expression of five fields, or of six with seconds first. Only its characters
            are checked here; the service dead-letters an invalid expression.
        timezone: IANA time zone of ``cron`` (``Europe/Berlin``), of which only the characters are
            checked here; None: UTC.
        times: largest number of occurrences; None: unlimited.

    Raises:
        InvalidRequestError: an argument can't be read, two contradict each other, or none gives
            the due time.
    """
    recurring = _recurring_headers(every, cron, timezone, times)
    headers = [*_due_headers(delay, at, is_needed=not recurring), *recurring]
    if window is not None:
        headers.append((names.DELAY_WINDOW_MS, str(delay_ms("window", window))))
    if expires_at is not None:
        expires_ms = instant_ms("expires_at", expires_at)
        if at is not None and expires_ms < instant_ms("at", at):
            raise InvalidRequestError("expires_at is before at: the record could only expire")
        headers.append((names.DELAY_EXPIRES_AT, str(expires_ms)))
    return headers


def _due_headers(delay: Delay | None, at: Instant | None, *, is_needed: bool) -> list[Header]:
    if delay is not None and at is not None:
        raise InvalidRequestError("delay and at both say when: give one of them")
    if delay is not None:
        return [(names.DELAY_AFTER, str(delay_ms("delay", delay)))]
    if at is not None:
        return [(names.DELAY_AT, str(instant_ms("at", at)))]
    if is_needed:
        raise InvalidRequestError("nothing says when: give delay, at, every or cron")
    return []


def _recurring_headers(
    every: Delay | None, cron: str | None, timezone: str | None, times: int | None
) -> list[Header]:
    if every is not None and cron is not None:
        raise InvalidRequestError("every and cron both say how often: give one of them")
    if every is None and cron is None:
        if timezone is not None or times is not None:
            raise InvalidRequestError("timezone and times belong to every or cron: give one")
        return []
    headers = _cron_headers(cron, timezone) if every is None else _every_headers(every, timezone)
    if times is not None:
        if type(times) is not int:
            raise InvalidRequestError(f"times is {times!r}: give a whole number")
        headers.append((names.DELAY_TIMES, str(_as_service(check_times, times))))
    return headers


def _every_headers(every: Delay, timezone: str | None) -> list[Header]:
    if timezone is not None:
        raise InvalidRequestError("timezone belongs to cron: a period has no zone")
    period_ms = _as_service(check_every, delay_ms("every", every))
    return [(names.DELAY_EVERY, str(period_ms))]


def _cron_headers(cron: str | None, timezone: str | None) -> list[Header]:
    headers: list[Header] = [(names.DELAY_CRON, _as_service(parse_cron, (cron or "").encode()))]
    if timezone is not None:
        headers.append((names.DELAY_TIMEZONE, _as_service(parse_zone, timezone.encode())))
    return headers


def _as_service(rule: Callable[[Given], Read], value: Given) -> Read:
    try:
        return rule(value)
    except RecordRefusedError as exc:
        raise InvalidRequestError(exc.detail) from exc


def target_headers(topic: str, partition: int | None, key: TargetKey) -> list[Header]:
    """Return the input headers that name the target.

    ``partition`` None: it is chosen by the output's key, as a Java producer does. ``key`` None: the
    record's own key; ``NO_KEY``: no key. Raise ``InvalidRequestError`` if the topic is illegal or
    reserved, or the partition no partition number.
    """
    headers: list[Header] = [(names.DELAY_TARGET_TOPIC, _target(topic))]
    if partition is not None:
        if type(partition) is not int or not 0 <= partition <= _PARTITION_MAX:
            raise InvalidRequestError(f"partition is {partition!r}: give a partition's number")
        headers.append((names.DELAY_TARGET_PARTITION, str(partition)))
    if key is not None:
        headers.append((names.DELAY_TARGET_KEY, None if isinstance(key, _NoKey) else _bytes(key)))
    return headers


@lru_cache(1024)
def _target(topic: str) -> str:
    if not is_legal_topic(topic):
        raise InvalidRequestError(f"{topic!r} is no legal topic name")
    if is_reserved(topic):
        raise InvalidRequestError(
            f"{topic} is never a target: names with __ or delay_ at the start are reserved"
        )
    return topic


def plain_headers(headers: OwnHeaders) -> list[Header]:
    """Return the headers that a caller wants delivered, as a list. Raise ``InvalidRequestError`` if
    the service reads, removes or writes one of them, or a name has a zero byte.
    """
    own = list(headers.items() if isinstance(headers, Mapping) else headers)
    for name, _ in own:
        if name in RESERVED:
            raise InvalidRequestError(
                f"header {name} is the service's: use the argument of that meaning, and "
                "own_headers(message) to send a record on"
            )
        if "\0" in name:
            raise InvalidRequestError(f"header name {name!r} has a zero byte")
    return [(name, _bytes(value)) for name, value in own]


# The client library would write only what is before a zero byte.
def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def id_bytes(record_id: Text, bytes_max: int) -> bytes:
    """Return an id as bytes (text as UTF-8); raise ``InvalidRequestError`` unless it has 1 to
    ``bytes_max`` bytes.
    """
    encoded = record_id.encode() if isinstance(record_id, str) else record_id
    if not 0 < len(encoded) <= bytes_max:
        raise InvalidRequestError(f"an id has 1 to {bytes_max} bytes, this has {len(encoded)}")
    return encoded


def delay_ms(argument: str, delay: Delay) -> int:
    """Return a delay in ms, rounded up so that no delivery is early; raise ``InvalidRequestError``
    if it is negative, ``DUE_STOP_MS`` or more, or can't be read.
    """
    if isinstance(delay, timedelta):
        return _bounded_ms(argument, -(-delay // _MILLISECOND))
    if isinstance(delay, str):
        delay = _as_service(partial(parse_duration_ms, argument), delay.encode())
    return _bounded_ms(argument, delay)


def instant_ms(argument: str, instant: Instant) -> int:
    """Return an instant in epoch ms, rounded up; raise ``InvalidRequestError`` if it has no time
    zone, is before 1970, ``DUE_STOP_MS`` or more, looks like seconds, or can't be read.
    """
    if isinstance(instant, datetime):
        if instant.utcoffset() is None:
            raise InvalidRequestError(
                f"{argument} is {instant}, without a time zone: give it one, as in "
                "datetime.now(UTC) or instant.astimezone()"
            )
        return _bounded_ms(argument, -((_EPOCH - instant) // _MILLISECOND))
    if isinstance(instant, str):
        parse = partial(parse_checked_instant_ms, argument)
        return _bounded_ms(argument, _as_service(parse, instant.encode()))
    return _as_service(partial(check_is_ms, argument), _bounded_ms(argument, instant))


def _bounded_ms(argument: str, ms: int) -> int:
    # A bool is an int, and a float would be cut in silence.
    if type(ms) is not int:
        raise InvalidRequestError(f"{argument} is {ms!r}: whole milliseconds are expected")
    if not 0 <= ms < DUE_STOP_MS:
        raise InvalidRequestError(f"{argument} is {ms} ms: 0 to {DUE_STOP_MS - 1} are possible")
    return ms
