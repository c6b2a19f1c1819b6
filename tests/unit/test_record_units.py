"""Times of records: durations with units, and seconds that are refused."""

from __future__ import annotations

import pytest

from delayservice.contract import names
from delayservice.contract.codes import TIME_INVALID
from delayservice.contract.recurrence import recurrence_of
from tests.unit.test_record import TARGET, WRITTEN_MS, code, due_ms, read

AT, AFTER, EVERY, EXPIRES = (
    names.DELAY_AT,
    names.DELAY_AFTER,
    names.DELAY_EVERY,
    names.DELAY_EXPIRES_AT,
)


@pytest.mark.parametrize(
    ("text", "delay_ms"),
    [
        (b"30s", 30_000),
        (b"1h30m", 5_400_000),
        (b"1.5s", 1_500),
        (b"250ms", 250),
        (b"PT30S", 30_000),
        (b"30000", 30_000),
    ],
)
def test_a_delay_is_read_as_in_commands_and_settings(text: bytes, delay_ms: int) -> None:
    entry = read(TARGET, (AFTER, text))
    assert due_ms(entry) == WRITTEN_MS + delay_ms
    recurring = read(TARGET, (EVERY, text))
    if delay_ms >= 1_000:
        recurrence = recurrence_of(recurring[4][6])
        assert recurrence is not None
        assert recurrence.every_ms == delay_ms


def test_a_letter_names_every_way_to_write_a_delay() -> None:
    entry = read(TARGET, (AFTER, b"soon"))
    assert code(entry) == TIME_INVALID
    assert "milliseconds, 30s, 1h30m or an ISO 8601 duration (PT30S)" in entry[5][1]


@pytest.mark.parametrize("instant", [10**8, 1_893_456_000, 10**11 - 1])
@pytest.mark.parametrize("others", [[], [("delay-window-ms", b"0")]])
def test_seconds_are_refused_and_the_letter_says_what_was_meant(
    instant: int, others: list[tuple[str, bytes]]
) -> None:
    entry = read(TARGET, (AT, b"%d" % instant), *others)
    assert code(entry) == TIME_INVALID
    assert "looks like seconds" in entry[5][1]
    assert str(instant * 1_000) in entry[5][1]
    expires = read(TARGET, (AFTER, b"1"), (EXPIRES, b"%d" % instant))
    assert code(expires) == TIME_INVALID


@pytest.mark.parametrize("instant", [b"0", b"1", b"99999999", b"100000000000"])
def test_what_can_be_no_seconds_is_milliseconds(instant: bytes) -> None:
    assert due_ms(read(TARGET, (AT, instant))) == max(int(instant), 1)


def test_a_date_of_1973_is_no_number_of_seconds() -> None:
    assert due_ms(read(TARGET, (AT, b"1973-01-01T00:00:00Z"))) == 94_694_400_000


@pytest.mark.parametrize(
    ("name", "due"),
    [
        ("TIMER_DELIVER_MS", 1_893_456_000),
        ("scheduler-epoch", 1_893_456_000_000),
        ("schedule_target_epoch", 1_893_456_000_000),
    ],
)
def test_headers_of_other_systems_have_the_unit_of_their_system(name: str, due: int) -> None:
    assert due_ms(read(TARGET, (name, b"1893456000"))) == due
