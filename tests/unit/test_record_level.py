"""Records of a level topic: the topic says when."""

from __future__ import annotations

import pytest

from delayservice.contract.codes import OP_INVALID, TARGET_DENIED, TIME_AMBIGUOUS, TIME_INVALID
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import INVALID, SCHEDULE, Entry, Headers
from delayservice.contract.record import RecordReader

WRITTEN_MS = 1_800_000_000_000
TARGET: Headers = [("delay-target-topic", b"orders")]


def read(headers: Headers, value: bytes | None = b"v", written_ms: int = WRITTEN_MS) -> Entry:
    contract = Contract(level_ms=5_000)
    reader = RecordReader("delay_topic_1", 0, Contracts([(0, contract)]), ())
    reader.read(0, WRITTEN_MS, None, b"v", TARGET)  # the target has been seen
    return reader.read(7, written_ms, b"key", value, headers)


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("DELAY", b"3")],
        [("DELAY", b"3"), ("UNIQ_KEY", b"AC11")],
    ],
)
def test_its_records_wait_for_the_level_whatever_they_say(headers: Headers) -> None:
    own: Headers = [("own", b"1")]
    entry = read([*own, *TARGET, *headers])
    kept = own + [header for header in headers if header[0] == "UNIQ_KEY"]
    due_ms = WRITTEN_MS + 5_000
    payload = ("orders", -1, b"key", b"v", kept, due_ms, None)
    assert entry == (7, SCHEDULE, due_ms, None, payload, None)


@pytest.mark.parametrize(
    "headers",
    [
        [("delay-id", b"a")],
        [("delay-op", b"cancel"), ("delay-id", b"a")],
        [("delay-op", b"fire")],
        [("scheduler-epoch", b"5")],
        [("delay-every", b"5000")],
    ],
)
def test_nothing_is_picked_out_of_it_again(headers: Headers) -> None:
    entry = read([*TARGET, *headers])
    assert entry[1] == INVALID
    assert entry[5][0] == OP_INVALID


@pytest.mark.parametrize("name", ["delay-at", "delay-after"])
def test_a_time_on_it_is_a_letter_and_not_ignored(name: str) -> None:
    entry = read([*TARGET, (name, b"5000")])
    assert entry[1] == INVALID
    assert entry[5][0] == TIME_AMBIGUOUS
    assert name in entry[5][1]
    assert "5000 ms" in entry[5][1]
    assert read([*TARGET, ("DELAY", b"3")])[1] == SCHEDULE, "RocketMQ's are ignored"


def test_a_null_value_is_a_value() -> None:
    assert read(TARGET, value=None)[1] == SCHEDULE
    assert read(TARGET, value=None)[4][3] is None


def test_the_rest_of_the_contract_holds() -> None:
    assert read([("delay-target-topic", b"delay_other")])[5][0] == TARGET_DENIED
    assert read(TARGET, written_ms=-1)[5][0] == TIME_INVALID
    assert read([*TARGET, ("delay-expires-at", b"99")])[4][6] == (None, None, 1, 99)
