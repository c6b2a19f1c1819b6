"""Records that recur: what their headers may say."""

from __future__ import annotations

import pytest

from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import INVALID, SCHEDULE, Entry, Headers
from delayservice.contract.record import RecordReader
from delayservice.contract.recurrence import Recurrence, recurrence_of
from tests.unit.known_targets import some

WRITTEN_MS = 1_800_000_000_000
EVERY = ("delay-every", b"5000")
CRON = ("delay-cron", b"0 9 * * MON-FRI")


def read(*headers: tuple[str, bytes | None]) -> Entry:
    contract = Contract(past_due="dead-letter")
    reader = RecordReader("delay_topic_any", 3, Contracts([(0, contract)]), [b"secret"])
    said: Headers = [("own", b"1"), ("delay-target-topic", b"orders"), *headers]
    return reader.read(7, WRITTEN_MS, b"key", b"v", said)


def test_a_period_begins_with_its_first_occurrence() -> None:
    offset, kind, key_ms, identity, payload, _ = read(EVERY, ("delay-id", b"a"))
    assert (offset, kind, key_ms, identity) == (7, SCHEDULE, WRITTEN_MS + 5_000, b"a")
    assert payload[:6] == ("orders", -1, b"key", b"v", [("own", b"1")], WRITTEN_MS + 5_000)
    assert payload[6][:4] == (b"a", b"delay_topic_any:3:7#1", 1, None)
    assert recurrence_of(payload[6]) == Recurrence(5_000)


def test_a_period_may_begin_at_any_time() -> None:
    at_ms = WRITTEN_MS + 99
    payload = read(("delay-every", b"PT5S"), ("delay-at", b"%d" % at_ms), ("delay-times", b"3"))[4]
    assert payload[5] == at_ms
    assert recurrence_of(payload[6]) == Recurrence(5_000, left=3)


def test_a_cron_schedule_is_due_at_once_for_its_first_occurrence_to_be_found() -> None:
    _, _, key_ms, _, payload, _ = read(CRON, ("delay-timezone", b"Europe/Berlin"))
    assert key_ms == payload[5] == WRITTEN_MS
    assert payload[6][:4] == (None, None, 1, None)
    cron = Recurrence(0, "0 9 * * MON-FRI", "Europe/Berlin", number=0)
    assert recurrence_of(payload[6]) == cron


def test_a_nickname_is_answered_by_what_to_write() -> None:
    refusal = read(("delay-cron", b"@daily"))[5]
    assert refusal[0] == "cron-invalid"
    assert "write five fields" in refusal[1]


def test_a_cron_schedule_may_begin_later_and_end() -> None:
    starts_ms = WRITTEN_MS + 1_000_000
    expires_ms = WRITTEN_MS + 9_000_000
    payload = read(CRON, ("delay-at", b"%d" % starts_ms), ("delay-expires-at", b"%d" % expires_ms))[
        4
    ]
    assert payload[5] == WRITTEN_MS
    assert payload[6][3] == expires_ms
    recurrence = some(recurrence_of(payload[6]))
    assert (recurrence.start_ms, recurrence.zone) == (starts_ms, "UTC")


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ([EVERY, CRON], "cron-invalid"),
        ([("delay-timezone", b"UTC")], "cron-invalid"),
        ([("delay-times", b"3")], "cron-invalid"),
        ([EVERY, ("delay-timezone", b"UTC")], "cron-invalid"),
        ([EVERY, ("delay-every", b"6000")], "cron-invalid"),
        ([("delay-every", b"999")], "cron-invalid"),
        ([("delay-every", b"never")], "time-invalid"),
        ([EVERY, ("delay-times", b"0")], "cron-invalid"),
        ([EVERY, ("delay-times", b"-1")], "time-invalid"),
        ([("delay-cron", None)], "cron-invalid"),
        ([("delay-cron", b"")], "cron-invalid"),
        ([("delay-cron", b"* * * * *" * 99)], "cron-invalid"),
        ([("delay-cron", b"../../etc")], "cron-invalid"),
        ([CRON, ("delay-timezone", b"../../etc/passwd")], "zone-invalid"),
        ([CRON, ("delay-timezone", b"")], "zone-invalid"),
        ([CRON, ("delay-timezone", b"x" * 65)], "zone-invalid"),
        ([EVERY, ("delay-at", b"1")], "time-past"),
        ([CRON, ("delay-at", b"9000-01-01T00:00:00Z")], "delay-too-long"),
        ([("delay-every", b"P10000W")], "delay-too-long"),
    ],
)
def test_what_makes_no_schedule_is_refused(headers: Headers, code: str) -> None:
    entry = read(*headers)
    assert entry[1] == INVALID
    assert entry[5][0] == code


def test_a_window_moves_a_schedule() -> None:
    window = ("delay-window-ms", b"60000")
    period = read(EVERY, window)[4]
    recurrence = some(recurrence_of(period[6]))
    assert 0 < recurrence.shift_ms <= 60_000
    assert period[5] == WRITTEN_MS + 5_000 + recurrence.shift_ms
    cron = some(recurrence_of(read(CRON, window)[4][6]))
    assert cron.shift_ms == recurrence.shift_ms
