"""Input headers for the arguments of a client's request, and the check of the record by the
service's own reader. Pure: nothing is sent here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final, Literal, TypeAlias, TypedDict

from delayservice.base.errors import InvalidRequestError
from delayservice.contract import names
from delayservice.contract.codes import RETRIES_EXHAUSTED, RecordRefusedError
from delayservice.contract.contracts import (
    HEADER_BYTES_MAX,
    MAX_DELAY_MS_MAX,
    Contract,
    Contracts,
)
from delayservice.contract.cron import cron_time
from delayservice.contract.entry import INVALID, Headers
from delayservice.contract.input_headers import RESERVED
from delayservice.contract.record import RecordReader
from delayservice.contract.times import (
    DUE_STOP_MS,
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

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


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
    backoff: Sequence[Delay] | None
    retries: int


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
    backoff: Sequence[Delay] | None = None,
    retries: int = 0,
) -> Headers:
    """Return the input headers for the due time, expiry, window and recurrence. ``RequestCheck``
    finds what is missing or contradicts itself in them.

    Args:
        delay: delay from the moment the broker appends the record; a fraction of a millisecond is
            rounded up.
        at: the due time; a fraction of a millisecond is rounded up. Give either ``delay`` or
            ``at``; a recurring schedule needs neither.
        expires_at: instant after which the record is expired instead of delivered.
        window: time after the due time over which deliveries may be spread.
        every: period of a recurring schedule, 1 s or more.
        cron: cron expression of five fields, or of six with seconds first.
        timezone: IANA time zone of ``cron`` (``Europe/Berlin``); None: UTC.
        times: largest number of occurrences; None: unlimited.
        backoff: delays of a record that a consumer sends again after each of its failures.
        retries: number of failures before this one; as many as ``backoff`` has delays, or more, and
            the service dead-letters the record.

    Raises:
        InvalidRequestError: an argument can't be read, or two of the times contradict each other.
    """
    if delay is not None and at is not None:
        raise InvalidRequestError("delay and at both say when: give one of them")
    at_ms = None if at is None else instant_ms("at", at)
    expires_ms = None if expires_at is None else instant_ms("expires_at", expires_at)
    if at_ms is not None and expires_ms is not None and expires_ms < at_ms:
        raise InvalidRequestError("expires_at is before at: the record could only expire")
    if cron is not None:
        _check_cron(cron, timezone)
    said = {
        names.DELAY_AFTER: None if delay is None else delay_ms("delay", delay),
        names.DELAY_AT: at_ms,
        names.DELAY_EVERY: None if every is None else delay_ms("every", every),
        names.DELAY_CRON: cron,
        names.DELAY_TIMEZONE: timezone,
        names.DELAY_TIMES: times,
        names.DELAY_WINDOW_MS: None if window is None else delay_ms("window", window),
        names.DELAY_EXPIRES_AT: expires_ms,
        names.DELAY_BACKOFF: None if backoff is None else _delays(backoff),
        names.DELAY_RETRIES: None if backoff is None else retries,
    }
    return [(name, str(value).encode()) for name, value in said.items() if value is not None]


def _delays(backoff: Sequence[Delay]) -> str:
    return ",".join(str(delay_ms("backoff", delay)) for delay in backoff)


def _check_cron(cron: str, timezone: str | None) -> None:
    try:
        zone = "UTC" if timezone is None else parse_zone(timezone.encode())
        cron_time(parse_cron(cron.encode()), zone, 0)
    except RecordRefusedError as exc:
        raise InvalidRequestError(exc.detail) from exc


def target_headers(topic: str, partition: int | None, key: TargetKey) -> Headers:
    """Return the input headers for the target topic and, unless None, its partition and the key of
    the output.
    """
    headers: Headers = [(names.DELAY_TARGET_TOPIC, topic.encode())]
    if partition is not None:
        headers.append((names.DELAY_TARGET_PARTITION, str(partition).encode()))
    if key is not None:
        headers.append((names.DELAY_TARGET_KEY, None if isinstance(key, _NoKey) else _bytes(key)))
    return headers


class RequestCheck:
    """Check of records for one delay topic by the service's own reader. It has the widest limits,
    because the settings of the service are not known here. Thread-safe.
    """

    def __init__(self, delay_topic: str, id_bytes_max: int, level_ms: int = 0) -> None:
        contract = Contract(
            max_delay_ms=MAX_DELAY_MS_MAX,
            clamp=True,
            header_bytes_max=HEADER_BYTES_MAX,
            id_bytes_max=id_bytes_max,
            level_ms=level_ms,
        )
        self._reader = RecordReader(delay_topic, 0, Contracts([(0, contract)]), ())

    def check(self, key: Text | None, value: Text | None, headers: Headers) -> None:
        """Raise ``InvalidRequestError`` if the service would dead-letter the record."""
        _, kind, _, _, _, refusal = self._reader.read(0, 0, _bytes(key), _bytes(value), headers)
        if kind == INVALID and refusal[0] != RETRIES_EXHAUSTED:  # that one is what is wanted
            raise InvalidRequestError(refusal[1])


def plain_headers(headers: OwnHeaders) -> Headers:
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
        if "\0" in name:  # the client library would write only what is before it
            raise InvalidRequestError(f"header name {name!r} has a zero byte")
    return [(name, _bytes(value)) for name, value in own]


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
        delay = _read(parse_duration_ms, argument, delay)
    return _bounded_ms(argument, delay)


def instant_ms(argument: str, instant: Instant) -> int:
    """Return an instant in epoch ms, rounded up; raise ``InvalidRequestError`` if it has no time
    zone, is before 1970, ``DUE_STOP_MS`` or more, or can't be read.
    """
    if isinstance(instant, datetime):
        if instant.utcoffset() is None:
            raise InvalidRequestError(
                f"{argument} is {instant}, without a time zone: give it one, as in "
                "datetime.now(UTC) or instant.astimezone()"
            )
        return _bounded_ms(argument, -((_EPOCH - instant) // _MILLISECOND))
    if isinstance(instant, str):
        instant = _read(parse_checked_instant_ms, argument, instant)
    return _bounded_ms(argument, instant)


def _read(parse: Callable[[str, bytes], int], argument: str, text: str) -> int:
    try:
        return parse(argument, text.encode())
    except RecordRefusedError as exc:
        raise InvalidRequestError(exc.detail) from exc


def _bounded_ms(argument: str, ms: int) -> int:
    # A bool is an int, and a float would be cut in silence.
    if type(ms) is not int:
        raise InvalidRequestError(f"{argument} is {ms!r}: whole milliseconds are expected")
    if not 0 <= ms < DUE_STOP_MS:
        raise InvalidRequestError(f"{argument} is {ms} ms: 0 to {DUE_STOP_MS - 1} are possible")
    return ms
