"""Records as the producers of other systems write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import CANCEL, INVALID, SCHEDULE, Entry, Headers
from delayservice.contract.input_headers import ALIASES
from delayservice.contract.levels import ROCKETMQ_LEVELS_MS
from delayservice.contract.record import RecordReader

WRITTEN_MS = 1_700_000_000_000
TARGET = ("delay-target-topic", b"videos")


def read(
    *headers: tuple[str, bytes | None], key: bytes | None = b"key", value: bytes | None = b"value"
) -> Entry:
    contracts = Contracts([(0, Contract())])
    reader = RecordReader("delay_topic_any", 0, contracts, [])
    return reader.read(1, WRITTEN_MS, key, value, list(headers))


@pytest.mark.parametrize(
    ("name", "text", "due_ms"),
    [
        ("TIMER_DELAY_SEC", b"5", WRITTEN_MS + 5_000),
        ("TIMER_DELAY_MS", b"5", WRITTEN_MS + 5),
        ("TIMER_DELIVER_MS", b"1700000000005", WRITTEN_MS + 5),
        ("DELAY", b"0", WRITTEN_MS),
        ("DELAY", b"1", WRITTEN_MS + 1_000),
        ("DELAY", b"3", WRITTEN_MS + 10_000),
        ("DELAY", b"18", WRITTEN_MS + 7_200_000),
        ("DELAY", b"19", WRITTEN_MS + 7_200_000),
        ("scheduler-epoch", b"1700000005", WRITTEN_MS + 5_000),
        ("schedule_target_epoch", b"1700000005", WRITTEN_MS + 5_000),
    ],
)
def test_every_time_alias_has_its_system_s_unit(name: str, text: bytes, due_ms: int) -> None:
    assert read((name, text), TARGET)[4][5] == due_ms


@pytest.mark.parametrize("text", [None, b"", b"-1", b"PT5S", b"2023-11-14T22:13:25Z"])
@pytest.mark.parametrize(
    "name",
    [
        "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "DELAY", "scheduler-epoch",
        "schedule_target_epoch",
    ],
)  # fmt: skip
def test_time_aliases_take_digits_only(name: str, text: bytes | None) -> None:
    assert read((name, text), TARGET)[5][0] == "time-invalid"


def test_rocketmq_has_eighteen_levels_of_rising_delay() -> None:
    seconds = [ms // 1_000 for ms in ROCKETMQ_LEVELS_MS]
    minutes = [60 * minute for minute in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)]
    assert seconds == [1, 5, 10, 30, *minutes]


def test_times_of_two_systems_must_agree() -> None:
    same = read(("DELAY", b"2"), ("TIMER_DELAY_SEC", b"5"), ("delay-after", b"PT5S"), TARGET)
    assert same[4][5] == WRITTEN_MS + 5_000
    other = read(("DELAY", b"2"), ("TIMER_DELAY_SEC", b"6"), TARGET)
    assert other[5][0] == "time-ambiguous"


def test_rocketmq_s_unique_key_is_the_id_and_is_delivered() -> None:
    unique = ("UNIQ_KEY", b"7F0001")
    entry = read(("TIMER_DELAY_SEC", b"5"), unique, TARGET)
    assert entry[3] == b"7F0001"
    assert entry[4][4] == [unique]


def test_rocketmq_s_unique_key_is_an_own_header_beside_our_headers() -> None:
    entry = read(("delay-after", b"5"), ("UNIQ_KEY", b"7F0001"), TARGET)
    assert entry[3] is None
    assert entry[4][4] == [("UNIQ_KEY", b"7F0001")]


@pytest.mark.parametrize("text", [b"7F0001", b"videos+7F0001"])
def test_rocketmq_recalls_by_unique_key_with_or_without_topic(text: bytes) -> None:
    deliver = ("TIMER_DELIVER_MS", b"1700000005000")
    entry = read(("TIMER_DEL_UNIQKEY", text), deliver, ("UNIQ_KEY", b"7F0001"), value=b"0")
    assert entry[1] == CANCEL
    assert entry[3] == b"7F0001"


@pytest.mark.parametrize("text", [None, b""])
def test_a_rocketmq_recall_of_nothing_is_op_invalid(text: bytes | None) -> None:
    assert read(("TIMER_DEL_UNIQKEY", text))[5][0] == "op-invalid"


def test_rocketmq_s_properties_name_no_target() -> None:
    entry = read(("TIMER_DELAY_SEC", b"5"), ("REAL_TOPIC", b"videos"))
    assert entry[5][0] == "target-missing"


ETF1: Headers = [
    ("scheduler-epoch", b"1893456000"),
    ("scheduler-target-topic", b"videos"),
    ("scheduler-target-key", b"vid1"),
    ("customer-header", b"dummy"),
]


def test_an_etf1_schedule_is_named_by_its_key_and_delivered_with_the_target_key() -> None:
    entry = read(*ETF1, key=b"vid1-online", value=b"video 1")
    meta = (b"vid1-online", None, 1, None)
    own = [("customer-header", b"dummy")]
    due_ms = 1_893_456_000_000
    assert entry[1] == SCHEDULE
    assert entry[3] == b"vid1-online"
    assert entry[4] == ("videos", -1, b"vid1", b"video 1", own, due_ms, meta)


@pytest.mark.parametrize("headers", [ETF1[:2], [*ETF1[:2], ("scheduler-target-key", None)]])
def test_an_etf1_schedule_without_a_target_key_has_a_null_key(headers: Headers) -> None:
    assert read(*headers, key=b"id")[4][2] is None


@pytest.mark.parametrize("headers", [[], ETF1, ETF1[3:]])
def test_an_etf1_null_value_cancels_with_or_without_headers(headers: Headers) -> None:
    entry = read(*headers, key=b"vid1-online", value=None)
    assert entry[1] == CANCEL
    assert entry[3] == b"vid1-online"
    assert entry[4] == (b"vid1-online", None, headers)


@pytest.mark.parametrize("key", [None, b""])
def test_a_bare_null_value_without_a_key_is_time_missing(key: bytes | None) -> None:
    assert read(key=key, value=None)[5][0] == "time-missing"


def test_a_key_that_is_an_id_has_the_limit_of_an_id() -> None:
    assert read(*ETF1, key=b"k" * 513)[5][0] == "header-too-large"
    assert read(key=b"k" * 513, value=None)[5][0] == "header-too-large"
    assert read(("delay-after", b"1"), TARGET, key=b"k" * 513)[1] == SCHEDULE


KARAFKA: Headers = [
    ("schedule_schema_version", b"1.0.0"),
    ("schedule_target_epoch", b"1700000005"),
    ("schedule_source_type", b"schedule"),
    ("schedule_target_topic", b"videos"),
    ("schedule_target_partition", b"2"),
    ("schedule_target_key", b"vid1"),
]


def test_a_karafka_envelope_is_scheduled_with_its_target_s_topic_partition_and_key() -> None:
    entry = read(*KARAFKA, key=b"videos-uuid")
    meta = (b"videos-uuid", None, 1, None)
    due_ms = WRITTEN_MS + 5_000
    assert entry[4] == ("videos", 2, b"vid1", b"value", [], due_ms, meta)


def test_a_karafka_null_payload_is_scheduled_unless_it_is_a_cancel() -> None:
    assert read(*KARAFKA, key=b"id", value=None)[1] == SCHEDULE
    cancel = [("schedule_schema_version", b"1.0.0"), ("schedule_source_type", b"cancel")]
    entry = read(*cancel, key=b"id", value=None)
    assert (entry[1], entry[3]) == (CANCEL, b"id")


def test_a_karafka_partition_key_is_refused_instead_of_half_served() -> None:
    entry = read(*KARAFKA, ("schedule_target_partition_key", b"x"))
    assert entry[1] == INVALID
    assert entry[5][0] == "target-invalid"


def test_the_user_s_page_lists_every_alias() -> None:
    page = (Path(__file__).parents[2] / "docs/internals/other-systems.md").read_text()
    assert [alias.header for alias in ALIASES if f"`{alias.header}`" not in page] == []
