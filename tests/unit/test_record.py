"""The header contract, one behaviour per test; the clock of every record is ``WRITTEN_MS``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from delayservice.contract import names
from delayservice.contract.codes import EXPLANATIONS
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import (
    CANCEL,
    FIRE,
    INVALID,
    SCHEDULE,
    UNREADABLE,
    Entry,
    Headers,
)
from delayservice.contract.record import RecordReader
from delayservice.engine.cursor import START_KEY

WRITTEN_MS = 1_700_000_000_000
ROLL_MS = 7_200_000
TARGET = (names.DELAY_TARGET_TOPIC, b"orders")
IN_FIVE_SECONDS = (names.DELAY_AFTER, b"5000")


def reader(**parameters: Any) -> RecordReader:  # any parameter of Contract
    contract = Contract(**{"roll_window_ms": ROLL_MS, **parameters})
    return RecordReader("delay_topic_any", 3, Contracts([(0, contract)]), [b"secret"])


def read(
    *headers: tuple[str, bytes | None],
    key: bytes | None = b"key",
    value: bytes | None = b"value",
    timestamp_ms: int = WRITTEN_MS,
    **parameters: Any,  # as in reader
) -> Entry:
    return reader(**parameters).read(7, timestamp_ms, key, value, list(headers))


def due_ms(entry: Entry) -> int:
    assert entry[1] == SCHEDULE, entry
    due = entry[4][5]
    assert isinstance(due, int)
    return due


def code(entry: Entry) -> str:
    assert entry[1] == INVALID, entry
    assert entry[5][0] in EXPLANATIONS
    assert entry[5][1]
    return str(entry[5][0])


# --- a plain record ----------------------------------------------------------------------------


def test_a_plain_record_is_scheduled_with_its_own_headers_in_order() -> None:
    own: Headers = [("a", b"1"), ("b", None), ("a", b"1"), ("c", b"\xff")]
    entry = read(own[0], TARGET, own[1], IN_FIVE_SECONDS, own[2], own[3])
    due = WRITTEN_MS + 5_000
    assert entry == (7, SCHEDULE, due, None, ("orders", -1, b"key", b"value", own, due, None), None)


def test_a_record_beyond_the_roll_window_has_its_roll_time_as_key() -> None:
    at_window = read(TARGET, (names.DELAY_AFTER, b"%d" % ROLL_MS))
    beyond = read(TARGET, (names.DELAY_AFTER, b"%d" % (ROLL_MS + 1)))
    assert at_window[2] == due_ms(at_window) == WRITTEN_MS + ROLL_MS
    assert beyond[2] == WRITTEN_MS + ROLL_MS
    assert due_ms(beyond) == beyond[2] + 1


@pytest.mark.parametrize("instant", [b"0", b"1969-01-01T00:00:00Z", b"0001-01-01T00:00:00+14:00"])
def test_the_key_of_a_due_time_in_1970_or_before_is_above_the_start_key(instant: bytes) -> None:
    entry = read(TARGET, (names.DELAY_AT, instant))
    assert (entry[2], 0) > START_KEY
    assert entry[2] == due_ms(entry) == 1


# --- times -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "due"),
    [
        (b"1700000005000", 1_700_000_005_000),
        (b"0000000000000000000001700000005000", 1_700_000_005_000),
        (b"2023-11-14T22:13:25Z", 1_700_000_005_000),
        (b"2023-11-14t22:13:25z", 1_700_000_005_000),
        (b"2023-11-14 22:13:25Z", 1_700_000_005_000),
        (b"2023-11-15T00:13:25+02:00", 1_700_000_005_000),
        (b"2023-11-14T22:13:25-00:00", 1_700_000_005_000),
        (b"2023-11-14T22:13:25+00", 1_700_000_005_000),
        (b"2023-11-14T22:14Z", 1_700_000_040_000),
        (b"2023-11-14T22:13:25.5Z", 1_700_000_005_500),
        (b"2023-11-14T22:13:25.001000Z", 1_700_000_005_001),
        (b"2023-11-14T22:13:25.0000000001Z", 1_700_000_005_001),
    ],
)
def test_delay_at_reads_epoch_milliseconds_and_rfc_3339(text: bytes, due: int) -> None:
    assert due_ms(read(TARGET, (names.DELAY_AT, text))) == due


@pytest.mark.parametrize(
    ("text", "delay_ms"),
    [
        (b"0", 0),
        (b"1", 1),
        (b"PT30S", 30_000),
        (b"PT0.25S", 250),
        (b"PT0,0001S", 1),
        (b"PT1M", 60_000),
        (b"P1DT2H3M4.005S", 93_784_005),
        (b"P1W", 604_800_000),
        (b"PT36H", 129_600_000),
    ],
)
def test_delay_after_reads_milliseconds_and_durations(text: bytes, delay_ms: int) -> None:
    assert due_ms(read(TARGET, (names.DELAY_AFTER, text))) == WRITTEN_MS + delay_ms


@pytest.mark.parametrize(
    "text",
    [
        None,
        b"",
        b" 1700000005000",
        b"-1",
        b"+5",
        b"1e3",
        b"1_000",
        b"1.5",
        b"\xd9\xa3",
        b"\xff",
        b"2023-11-14T22:13:25",
        b"2023-11-14",
        b"2023-02-30T00:00:00Z",
        b"2023-11-14T24:00:00Z",
        b"2023-11-14T23:59:60Z",
        b"2023-11-14T22Z",
        b"2023-11-14T22:13.5Z",
        b"2023-11-14T22:13:25+0100",
        b"2023-11-14T22:13:25+25:00",
        b"2023-11-14T22:13:25Z\n",
        b"tomorrow",
    ],
)
def test_anything_else_in_delay_at_is_time_invalid(text: bytes | None) -> None:
    assert code(read(TARGET, (names.DELAY_AT, text))) == "time-invalid"


@pytest.mark.parametrize(
    "text",
    [
        None, b"", b"-1", b"-PT1S", b"P", b"PT", b"P1DT", b"PT5", b"5S", b"pt5s", b"PT1H1H",
        b"PT1.5H", b"P1Y", b"P1M", b"P1Y2M3DT4S", b"PT1S ", b"PT\xff",
    ],
)  # fmt: skip
def test_anything_else_in_delay_after_is_time_invalid(text: bytes | None) -> None:
    assert code(read(TARGET, (names.DELAY_AFTER, text))) == "time-invalid"


def test_years_and_months_are_refused_with_a_reason() -> None:
    assert "no fixed length" in read(TARGET, (names.DELAY_AFTER, b"P1Y"))[5][1]


def test_no_time_header_is_time_missing() -> None:
    assert code(read(TARGET)) == "time-missing"


@pytest.mark.parametrize("name", ["Delay-After", "delay_after", "delay-At", "DELAY_AT"])
def test_a_header_that_is_nearly_right_is_named(name: str) -> None:
    detail = read(TARGET, (name, b"5000"))[5][1]
    meant = name.lower().replace("_", "-")
    assert detail.endswith(f"; {name} is not read, {meant} would be")


def test_what_is_no_header_of_ours_is_not_named() -> None:
    assert ";" not in read(TARGET, ("delayafter", b"5000"), ("X-Delay-After", b"1"))[5][1]


def test_two_times_that_disagree_are_time_ambiguous() -> None:
    at, after = (names.DELAY_AT, b"1700000005001"), IN_FIVE_SECONDS
    assert code(read(TARGET, at, after)) == "time-ambiguous"
    assert code(read(TARGET, after, (names.DELAY_AFTER, b"5001"))) == "time-ambiguous"


def test_times_that_agree_are_one_time() -> None:
    at = (names.DELAY_AT, b"2023-11-14T22:13:25Z")
    assert due_ms(read(TARGET, at, IN_FIVE_SECONDS, IN_FIVE_SECONDS)) == 1_700_000_005_000


def test_a_bad_time_is_not_hidden_by_a_good_one() -> None:
    assert code(read(TARGET, IN_FIVE_SECONDS, (names.DELAY_AT, b"x"))) == "time-invalid"


@pytest.mark.parametrize("timestamp_ms", [-1, -(2**63), 2**52, 2**63 - 1])
def test_a_record_without_a_usable_timestamp_is_time_invalid(timestamp_ms: int) -> None:
    shard = reader()
    shard.read(0, WRITTEN_MS, None, b"", [TARGET, IN_FIVE_SECONDS])
    at_once = (names.DELAY_AFTER, b"0")
    assert code(shard.read(1, timestamp_ms, None, b"", [TARGET, at_once])) == "time-invalid"


@pytest.mark.parametrize(
    "header",
    [
        (names.DELAY_AFTER, b"1001"),
        (names.DELAY_AFTER, b"9" * 4_000),
        (names.DELAY_AFTER, b"P" + b"9" * 4_000 + b"D"),
        (names.DELAY_AT, b"9999-12-31T23:59:59Z"),
        (names.DELAY_AT, b"%d" % 2**63),
        ("TIMER_DELAY_SEC", b"2"),
        ("scheduler-epoch", b"9" * 30),
    ],
)
def test_a_longer_delay_than_allowed_is_too_long_or_clamped(header: tuple[str, bytes]) -> None:
    assert code(read(TARGET, header, max_delay_ms=1_000)) == "delay-too-long"
    assert due_ms(read(TARGET, header, max_delay_ms=1_000, clamp=True)) == WRITTEN_MS + 1_000


def test_the_longest_delay_itself_is_allowed() -> None:
    assert due_ms(read(TARGET, (names.DELAY_AFTER, b"1000"), max_delay_ms=1_000))


def test_a_due_time_stays_exact_at_the_largest_settings() -> None:
    largest = {"max_delay_ms": 2**52, "timestamp_ms": 2**52 - 1, "clamp": True}
    entry = read(TARGET, (names.DELAY_AFTER, b"9" * 100), **largest)  # type: ignore[arg-type]
    assert due_ms(entry) == 2**53 - 1


def test_past_due_is_judged_by_the_record_s_own_timestamp() -> None:
    past, now = (names.DELAY_AT, b"%d" % (WRITTEN_MS - 1)), (names.DELAY_AT, b"%d" % WRITTEN_MS)
    assert due_ms(read(TARGET, past)) == WRITTEN_MS - 1
    assert code(read(TARGET, past, past_due="dead-letter")) == "time-past"
    assert due_ms(read(TARGET, now, past_due="dead-letter")) == WRITTEN_MS


def test_delay_expires_at_is_carried_in_the_payload() -> None:
    entry = read(TARGET, IN_FIVE_SECONDS, (names.DELAY_EXPIRES_AT, b"1970-01-01T00:00:01Z"))
    assert entry[4][6] == (None, None, 1, 1_000)


def test_delay_expires_at_must_be_an_instant_and_only_one() -> None:
    expiry = names.DELAY_EXPIRES_AT
    assert code(read(TARGET, IN_FIVE_SECONDS, (expiry, b"PT5S"))) == "time-invalid"
    two = [(expiry, b"1"), (expiry, b"2")]
    assert code(read(TARGET, IN_FIVE_SECONDS, *two)) == "time-ambiguous"


def test_delay_window_ms_spreads_the_due_time_by_the_offset() -> None:
    window = (names.DELAY_WINDOW_MS, b"60000")
    dues = {
        due_ms(reader().read(offset, WRITTEN_MS, None, b"", [TARGET, IN_FIVE_SECONDS, window]))
        - WRITTEN_MS
        for offset in range(600)
    }
    assert min(dues) >= 5_000
    assert max(dues) <= 65_000
    assert len({due // 1_000 for due in dues}) >= 60


def test_delay_window_ms_is_milliseconds_and_one() -> None:
    assert code(read(TARGET, IN_FIVE_SECONDS, (names.DELAY_WINDOW_MS, b"PT1M"))) == "time-invalid"
    two = [(names.DELAY_WINDOW_MS, b"1"), (names.DELAY_WINDOW_MS, b"2")]
    assert code(read(TARGET, IN_FIVE_SECONDS, *two)) == "time-ambiguous"


# --- targets -----------------------------------------------------------------------------------


def test_no_target_is_target_missing_unless_there_is_a_default() -> None:
    assert code(read(IN_FIVE_SECONDS)) == "target-missing"
    assert read(IN_FIVE_SECONDS, default_target="elsewhere")[4][0] == "elsewhere"


@pytest.mark.parametrize(
    "topic",
    [None, b"", b".", b"..", b"a b", b"orders/x", b"../orders", b"a" * 250, b"\xff", b"o\n"],
)
def test_what_is_no_topic_name_is_target_invalid(topic: bytes | None) -> None:
    target = (names.DELAY_TARGET_TOPIC, topic)
    assert code(read(target, IN_FIVE_SECONDS)) == "target-invalid"


def test_a_delay_topic_of_another_name_is_never_its_own_target() -> None:
    contracts = Contracts([(0, Contract())])
    headers = [(names.DELAY_TARGET_TOPIC, b"later"), IN_FIVE_SECONDS]
    entry = RecordReader("later", 0, contracts, []).read(0, WRITTEN_MS, None, b"", list(headers))
    assert code(entry) == "target-denied"


def test_two_targets_must_agree() -> None:
    other = (names.DELAY_TARGET_TOPIC, b"orders2")
    assert code(read(TARGET, other, IN_FIVE_SECONDS)) == "target-invalid"
    assert read(TARGET, TARGET, IN_FIVE_SECONDS)[4][0] == "orders"


def test_a_partition_is_a_number_of_31_bits() -> None:
    def with_partition(text: bytes | None) -> Entry:
        return read(TARGET, IN_FIVE_SECONDS, (names.DELAY_TARGET_PARTITION, text))

    assert with_partition(b"0")[4][1] == 0
    assert with_partition(b"2147483647")[4][1] == 2**31 - 1
    for bad in (None, b"", b"-1", b"2147483648", b"x", b"1 "):
        assert code(with_partition(bad)) == "target-invalid"


@pytest.mark.parametrize("key", [b"", b"\x00\xff", None])
def test_delay_target_key_replaces_the_key_and_may_be_empty_or_null(key: bytes | None) -> None:
    assert read(TARGET, IN_FIVE_SECONDS, (names.DELAY_TARGET_KEY, key))[4][2] == key


# --- ids and operations ------------------------------------------------------------------------


def test_an_id_is_carried_in_entry_and_payload() -> None:
    entry = read(TARGET, IN_FIVE_SECONDS, (names.DELAY_ID, b"\x00\xff"))
    assert entry[3] == b"\x00\xff"
    assert entry[4][6] == (b"\x00\xff", None, 1, None)


def test_cancel_needs_an_id_and_keeps_the_original() -> None:
    headers: Headers = [(names.DELAY_OP, b"cancel"), (names.DELAY_ID, b"id"), ("a", b"1")]
    original = (b"key", b"value", headers)
    assert read(*headers) == (7, CANCEL, 0, b"id", original, None)
    assert code(read(headers[0])) == "op-invalid"


def test_fire_names_the_record_that_it_delivers() -> None:
    entry = read((names.DELAY_OP, b"fire"), (names.DELAY_ID, b"id"), IN_FIVE_SECONDS)
    assert entry[:4] == (7, FIRE, 0, b"id")
    assert code(read((names.DELAY_OP, b"fire"))) == "op-invalid"


@pytest.mark.parametrize("text", [None, b"", b"Cancel", b"delete", b"\xff", b"x" * 100])
def test_an_unknown_operation_is_op_invalid(text: bytes | None) -> None:
    entry = read(TARGET, IN_FIVE_SECONDS, (names.DELAY_OP, text), (names.DELAY_ID, b"i"))
    assert code(entry) == "op-invalid"


def test_two_operations_or_ids_must_agree() -> None:
    cancel, fire = (names.DELAY_OP, b"cancel"), (names.DELAY_OP, b"fire")
    one, two = (names.DELAY_ID, b"1"), (names.DELAY_ID, b"2")
    assert code(read(cancel, fire, one)) == "op-invalid"
    assert code(read(cancel, one, two)) == "op-invalid"
    assert read(cancel, cancel, one, one)[1] == CANCEL


@pytest.mark.parametrize("text", [None, b""])
def test_an_empty_id_is_op_invalid(text: bytes | None) -> None:
    assert code(read(TARGET, IN_FIVE_SECONDS, (names.DELAY_ID, text))) == "op-invalid"


def test_the_time_and_target_of_a_cancel_do_not_matter() -> None:
    bad = ((names.DELAY_AT, b"x"), (names.DELAY_TARGET_TOPIC, b"/"), (names.DELAY_CRON, b""))
    assert read(*bad, (names.DELAY_OP, b"cancel"), (names.DELAY_ID, b"i"))[1] == CANCEL


def test_a_null_value_with_an_id_alone_cancels() -> None:
    assert read((names.DELAY_ID, b"i"), value=None)[1] == CANCEL
    assert code(read((names.DELAY_ID, b"i"), value=b"")) == "time-missing"


def test_a_null_value_with_an_id_and_a_time_is_a_delayed_tombstone() -> None:
    entry = read((names.DELAY_ID, b"i"), TARGET, IN_FIVE_SECONDS, value=None)
    assert entry[1] == SCHEDULE
    assert entry[4][3] is None


def test_an_id_or_input_header_over_its_limit_is_header_too_large() -> None:
    fits, over = (names.DELAY_ID, b"i" * 512), (names.DELAY_ID, b"i" * 513)
    assert read(TARGET, IN_FIVE_SECONDS, fits)[1] == SCHEDULE
    assert code(read(TARGET, IN_FIVE_SECONDS, over)) == "header-too-large"
    key = (names.DELAY_TARGET_KEY, b"k" * 4_097)
    assert code(read(TARGET, IN_FIVE_SECONDS, key)) == "header-too-large"


# --- what is stripped, and what is kept --------------------------------------------------------


def test_output_headers_of_a_user_are_dropped_so_that_provenance_cannot_be_forged() -> None:
    forged = [(name, b"x" * 5_000) for name in sorted(names.OUTPUT)]
    assert read(TARGET, IN_FIVE_SECONDS, *forged)[4][4] == []


def test_an_unknown_delay_header_is_an_own_header() -> None:
    assert read(TARGET, IN_FIVE_SECONDS, ("delay-foo", b"1"))[4][4] == [("delay-foo", b"1")]


@pytest.mark.parametrize("name", sorted(names.COPY_NAMES))
def test_a_claimed_copy_is_never_a_plain_record(name: str) -> None:
    assert code(read(TARGET, IN_FIVE_SECONDS, (name, b"{}"))) == "copy-forged"


def test_a_record_whose_headers_cannot_be_read_is_header_invalid() -> None:
    entry = reader(default_target="a").read(9, WRITTEN_MS, b"k", None, UNREADABLE)
    assert code(entry) == "header-invalid"
    assert entry[4] == (b"k", None, [])


# --- contracts over offsets --------------------------------------------------------------------


def test_each_record_is_read_by_the_contract_of_its_offset_in_any_order() -> None:
    first = Contract(max_delay_ms=4_999)
    contracts = Contracts([(0, first)]).extended(10, Contract())
    shard = RecordReader("delay_topic_any", 0, contracts, [])
    kinds = [
        shard.read(offset, WRITTEN_MS, None, b"", [TARGET, IN_FIVE_SECONDS])[1]
        for offset in (9, 10, 9, 0, 11, 9)
    ]
    assert kinds == [INVALID, SCHEDULE, INVALID, INVALID, SCHEDULE, INVALID]


def test_an_adopted_contract_holds_from_its_offset_on() -> None:
    contracts = Contracts([(0, Contract())])
    shard = RecordReader("delay_topic_any", 0, contracts, [])
    headers: Headers = [TARGET, IN_FIVE_SECONDS]
    assert shard.read(5, WRITTEN_MS, None, b"", headers)[1] == SCHEDULE
    shard.adopt(contracts.extended(5, Contract(max_delay_ms=4_999)))
    assert shard.read(5, WRITTEN_MS, None, b"", headers)[1] == INVALID
    assert shard.read(4, WRITTEN_MS, None, b"", headers)[1] == SCHEDULE


# --- the document ------------------------------------------------------------------------------


def test_the_user_s_page_lists_every_code_and_every_header() -> None:
    page = (Path(__file__).parents[2] / "docs" / "header-contract.md").read_text()
    quoted = set(re.findall(r"`([^`\n]+)`", page))
    assert set(EXPLANATIONS) <= quoted
    listed = names.OUTPUT | names.RECURRING | names.COPY_NAMES
    assert listed - quoted == set()
