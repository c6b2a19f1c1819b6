from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from delayservice.base.errors import InvalidRequestError
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import INVALID, SCHEDULE
from delayservice.contract.record import RecordReader
from delayservice.contract.request import (
    NO_KEY,
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
        ("P1DT12H", 129_600_000),
        ("250", 250),
        ("PT0.0001S", 1),
    ],
)
def test_a_delay_is_whole_milliseconds_rounded_up(delay: Any, ms: int) -> None:
    assert delay_ms("delay", delay) == ms


@pytest.mark.parametrize(
    "delay",
    [-1, timedelta(microseconds=-1_000), "1 hour", "P1M", "PT-1S", 1.5, True, 2**53, "\N{SNOWMAN}"],
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
        ("1970-01-01T01:00:01+01:00", 1_000),
        ("1971-01-01T00:00:00Z", 31_536_000_000),  # a text says what it means
        ("2030-01-01T01:00Z", 1_893_459_600_000),  # Java leaves out zero seconds
        ("2030-01-01T01:00+01:00", 1_893_456_000_000),
        ("2030-01-01 01:00:00.0001+01", 1_893_456_000_001),  # PostgreSQL, minutes of the offset
        (0, 0),
        (99_999_999, 99_999_999),
        (100_000_000_000, 100_000_000_000),
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
        ("2030-01-01T00:00", "Z or an offset is expected"),
        ("2030-01-01T00:00.5Z", "Z or an offset is expected"),
        ("2030-01-01T00Z", "Z or an offset is expected"),
        ("2030-01-01T00:00:00+0100", "Z or an offset is expected"),
        (1.5e12, "whole milliseconds"),
        (1_893_456_000, r"looks like seconds: .* \(1893456000000\)"),
        ("1893456000", "looks like seconds"),
        (100_000_000, "looks like seconds"),
        (99_999_999_999, "looks like seconds"),
    ],
)
def test_an_instant_without_a_zone_or_before_1970_is_refused(at: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        instant_ms("at", at)


@pytest.mark.parametrize(
    ("when", "headers"),
    [
        ({"delay": 5}, [("delay-after", "5")]),
        ({"at": 5}, [("delay-at", "5")]),
        ({"every": "PT1M"}, [("delay-every", "60000")]),
        (
            {"at": 7, "every": 60_000, "times": 3},
            [("delay-at", "7"), ("delay-every", "60000"), ("delay-times", "3")],
        ),
        (
            {"cron": "0 9 * * 1-5", "timezone": "Europe/Berlin"},
            [("delay-cron", "0 9 * * 1-5"), ("delay-timezone", "Europe/Berlin")],
        ),
        (
            {"delay": 1, "window": timedelta(seconds=1), "expires_at": 9},
            [("delay-after", "1"), ("delay-window-ms", "1000"), ("delay-expires-at", "9")],
        ),
    ],
)
def test_what_says_when_becomes_the_headers_of_the_contract(when: Any, headers: Any) -> None:
    assert when_headers(**when) == headers


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ({}, "nothing says when: give delay, at, every or cron"),
        ({"expires_at": 5}, "nothing says when"),
        ({"delay": 1, "at": 1}, "give one of them"),
        ({"every": 1, "cron": "* * * * *"}, "give one of them"),
        ({"delay": 1, "times": 2}, "belong to every or cron"),
        ({"delay": 1, "timezone": "UTC"}, "belong to every or cron"),
        ({"every": 1, "timezone": "UTC"}, "a period has no zone"),
        ({"every": 999}, "delay-every is 999 ms: 1000 is the least"),
        ({"every": 1_000, "times": 0}, "delay-times is 0"),
        ({"every": 1_000, "times": True}, "times is True"),
        ({"cron": ""}, "no cron expression"),
        ({"cron": "0 9 * * *", "timezone": "no zone"}, "no name of a time zone"),
        ({"at": 10, "expires_at": 9}, "expires_at is before at"),
    ],
)
def test_what_contradicts_itself_is_refused_with_what_to_do(when: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        when_headers(**when)


def test_a_target_that_the_service_would_refuse_is_refused() -> None:
    for topic in ("", "a b", "..", "x" * 250, "delay_topic_any", "__consumer_offsets"):
        with pytest.raises(InvalidRequestError):
            target_headers(topic, None, None)
    for partition in (-1, 2**31, True):
        with pytest.raises(InvalidRequestError, match="partition"):
            target_headers("orders", partition, None)


def test_the_outputs_key_is_kept_replaced_or_left_out() -> None:
    assert target_headers("orders", None, None) == [("delay-target-topic", "orders")]
    assert target_headers("orders", 3, "k")[1:] == [
        ("delay-target-partition", "3"),
        ("delay-target-key", b"k"),
    ]
    assert target_headers("orders", None, NO_KEY)[1:] == [("delay-target-key", None)]


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


def test_the_service_reads_what_the_client_wrote() -> None:
    reader = RecordReader("delay_topic_any", 0, Contracts([(0, Contract())]), ())
    headers = [
        *when_headers(delay=timedelta(seconds=2), expires_at=NOW_MS + 9_000, window=5),
        *target_headers("orders", 2, "other"),
    ]
    entry = reader.read(
        1, NOW_MS, b"k", b"v", [(n, v.encode() if isinstance(v, str) else v) for n, v in headers]
    )
    assert entry[1] == SCHEDULE != INVALID
    target, partition, key, value, own, due_ms, _ = entry[4][:7]
    assert (target, partition, key, value, own) == ("orders", 2, b"other", b"v", [])
    assert due_ms >= NOW_MS + 2_000
