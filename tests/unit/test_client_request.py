"""Arguments of the client; what their headers mean is in ``test_header_table``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from delayservice.base.errors import InvalidRequestError
from delayservice.contract.request import (
    delay_ms,
    id_bytes,
    instant_ms,
    plain_headers,
    target_headers,
    when_headers,
)

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("delay", "ms"),
    [
        (0, 0),
        (1_500, 1_500),
        (timedelta(seconds=30), 30_000),
        (timedelta(microseconds=1_001), 2),
        (timedelta(microseconds=1), 1),
        ("PT30S", 30_000),
    ],
)
def test_a_delay_is_whole_milliseconds_rounded_up(delay: Any, ms: int) -> None:
    assert delay_ms("delay", delay) == ms


@pytest.mark.parametrize(
    "delay", [-1, timedelta(microseconds=-1_000), "1 hour", 1.5, True, 2**53, "\N{SNOWMAN}"]
)
def test_a_delay_that_the_service_would_refuse_is_refused_by_name(delay: Any) -> None:
    with pytest.raises(InvalidRequestError, match="delay"):
        delay_ms("delay", delay)


@pytest.mark.parametrize(
    ("at", "ms"),
    [
        (NOW_MS, NOW_MS),
        (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), 1_000),
        (datetime(1970, 1, 1, 1, 0, 1, tzinfo=timezone(timedelta(hours=1))), 1_000),
        (datetime(1970, 1, 1, 0, 0, 0, 1_001, tzinfo=UTC), 2),
        ("2030-01-01T01:00+01:00", 1_893_456_000_000),
    ],
)
def test_an_instant_is_epoch_milliseconds_rounded_up(at: Any, ms: int) -> None:
    assert instant_ms("at", at) == ms


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (datetime(2030, 1, 1), "at is 2030-01-01 00:00:00, without a time zone"),  # noqa: DTZ001
        (datetime(1969, 12, 31, tzinfo=UTC), "at is -86400000 ms"),
        ("2030-01-01T00:00:00", "Z or an offset is expected"),
        (1.5e12, "whole milliseconds"),
        ("1893456000", "looks like seconds"),
    ],
)
def test_an_instant_without_a_zone_or_before_1970_is_refused(at: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        instant_ms("at", at)


def test_times_that_contradict_each_other_are_refused() -> None:
    for when, message in [
        ({"delay": 1, "at": 1}, "give one of them"),
        ({"at": 10, "expires_at": 9}, "expires_at is before at"),
    ]:
        with pytest.raises(InvalidRequestError, match=message):
            when_headers(**when)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["delay-at", "delay-source", "delay-copy", "delay-home", "DELAY", "delay-id"]
)
def test_own_headers_that_the_service_would_read_or_drop_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=name):
        plain_headers([(name, b"1")])
    assert plain_headers({"trace": b"1", "delay-mine": None}) == [
        ("trace", b"1"),
        ("delay-mine", None),
    ]


def test_no_byte_of_a_header_is_lost_in_the_client_library() -> None:
    assert plain_headers({"trace": "a\0b"}) == [("trace", b"a\0b")]
    assert target_headers("orders", None, "a\0b")[1:] == [("delay-target-key", b"a\0b")]
    with pytest.raises(InvalidRequestError, match="zero byte"):
        plain_headers([("trace\0id", b"1")])


def test_an_id_has_at_least_one_byte_and_at_most_the_services_limit() -> None:
    assert id_bytes("\N{SNOWMAN}", 3) == b"\xe2\x98\x83"
    for wrong in ("", b"", "\N{SNOWMAN}" * 2):
        with pytest.raises(InvalidRequestError, match="an id has 1 to 3 bytes"):
            id_bytes(wrong, 3)
