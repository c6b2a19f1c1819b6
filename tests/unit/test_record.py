"""Records as the contract reads them, and how a burst of them is spread."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from delayservice.contract import names
from delayservice.contract.codes import EXPLANATIONS
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import INVALID, SCHEDULE, UNREADABLE, Headers
from delayservice.contract.input_headers import INPUT, OWN_INPUT
from delayservice.contract.levels import ROCKETMQ_LEVELS_MS
from delayservice.contract.record import RecordReader
from delayservice.contract.recurrence import recurrence_of
from delayservice.contract.times import spread_ms
from tests.unit.known_targets import some

WRITTEN_MS = 1_700_000_000_000
SOON: Headers = [("delay-target-topic", b"orders"), ("delay-after", b"5000")]
WINDOW = ("delay-window-ms", b"60000")
DOCS = Path(__file__).parents[2] / "docs"


def reader(contracts: Contracts | None = None, topic: str = "delay_topic_any") -> RecordReader:
    return RecordReader(topic, 3, contracts or Contracts([(0, Contract())]), [b"secret"])


def test_a_window_spreads_due_times_by_the_offset() -> None:
    dues = {
        reader().read(offset, WRITTEN_MS, None, b"", [*SOON, WINDOW])[4][5] - WRITTEN_MS
        for offset in range(600)
    }
    assert min(dues) >= 5_000
    assert max(dues) <= 65_000
    assert len({due // 1_000 for due in dues}) >= 60


def test_a_window_moves_a_schedule_by_one_shift() -> None:
    shifts = set()
    for header in [("delay-every", b"5000"), ("delay-cron", b"0 9 * * *")]:
        payload = reader().read(7, WRITTEN_MS, None, b"", [SOON[0], header, WINDOW])[4]
        recurrence = some(recurrence_of(payload[6]))
        shifts.add(recurrence.shift_ms)
        if recurrence.every_ms:
            assert payload[5] == WRITTEN_MS + 5_000 + recurrence.shift_ms
    assert len(shifts) == 1
    assert 0 < shifts.pop() <= 60_000


def test_a_delay_topic_of_another_name_is_never_its_own_target() -> None:
    headers: Headers = [("delay-target-topic", b"later"), SOON[1]]
    assert reader(topic="later").read(0, WRITTEN_MS, None, b"", headers)[5][0] == "target-denied"


def test_a_record_whose_headers_cannot_be_read_is_header_invalid() -> None:
    entry = reader().read(9, WRITTEN_MS, b"k", None, UNREADABLE)
    assert (entry[1], entry[4], entry[5][0]) == (INVALID, (b"k", None, []), "header-invalid")


def test_each_record_is_read_by_the_contract_of_its_offset_in_any_order() -> None:
    shard = reader(Contracts([(0, Contract(max_delay_ms=4_999))]).extended(10, Contract()))
    kinds = [shard.read(at, WRITTEN_MS, None, b"", SOON)[1] for at in (9, 10, 9, 0, 11, 9)]
    assert kinds == [INVALID, SCHEDULE, INVALID, INVALID, SCHEDULE, INVALID]


def test_an_adopted_contract_holds_from_its_offset_on() -> None:
    contracts = Contracts([(0, Contract())])
    shard = reader(contracts)
    assert shard.read(5, WRITTEN_MS, None, b"", SOON)[1] == SCHEDULE
    shard.adopt(contracts.extended(5, Contract(max_delay_ms=4_999)))
    assert shard.read(5, WRITTEN_MS, None, b"", SOON)[1] == INVALID
    assert shard.read(4, WRITTEN_MS, None, b"", SOON)[1] == SCHEDULE


def test_rocketmq_has_eighteen_levels_of_rising_delay() -> None:
    minutes = [60 * minute for minute in (*range(1, 11), 20, 30, 60, 120)]
    assert [ms // 1_000 for ms in ROCKETMQ_LEVELS_MS] == [1, 5, 10, 30, *minutes]


def test_the_user_s_pages_list_every_code_header_and_alias() -> None:
    quoted = set(re.findall(r"`([^`\n]+)`", (DOCS / "header-contract.md").read_text()))
    assert set(EXPLANATIONS) <= quoted
    assert quoted >= names.OUTPUT | OWN_INPUT | names.COPY_NAMES
    others = (DOCS / "internals/other-systems.md").read_text()
    assert [name for name in INPUT if "delay-" not in name and f"`{name}`" not in others] == []


# --- spreading is even, within its span, and never changes ----------------------------------------


HOUR_MS = 3_600_000


def test_the_spread_of_a_window_follows_from_the_log() -> None:
    # Changing one of these moves the keys of records that are pending somewhere.
    assert [spread_ms(offset, 1_000) for offset in range(6)] == [0, 618, 236, 854, 472, 90]


def test_nothing_is_spread_over_nothing() -> None:
    assert {spread_ms(offset, 0) for offset in range(1_000)} == {0}


def test_a_burst_is_even() -> None:
    seconds = Counter(spread_ms(offset, 99_999) // 1_000 for offset in range(70_000, 80_000))
    assert set(seconds) == set(range(100))
    assert max(seconds.values()) <= 1.1 * 100


def test_records_of_one_moment_are_rolled_at_many() -> None:
    contract = Contract(roll_window_ms=8 * HOUR_MS, roll_spread_ms=HOUR_MS)
    reader = RecordReader("delay_topic_any", 0, Contracts([(0, contract)]), ())
    headers: Headers = [("delay-after", b"%d" % (10 * HOUR_MS)), ("delay-target-topic", b"orders")]
    long_headers: Headers = [*headers, ("delay-expires-at", b"%d" % 2**50)]
    written_ms = 1_800_000_000_000
    keys = []
    for offset in range(1_000):
        row = (offset, written_ms, None, b"v")
        key_ms = reader.read(*row, headers)[2]
        assert reader.read(*row, long_headers)[2] == key_ms  # the short way and the long way
        keys.append(key_ms - written_ms)
    assert min(keys) >= 7 * HOUR_MS
    assert max(keys) <= 8 * HOUR_MS
    assert len({key_ms // 60_000 for key_ms in keys}) >= 60


def test_records_due_within_the_roll_window_keep_their_time() -> None:
    contract = Contract(roll_window_ms=8_000, roll_spread_ms=1_000)
    reader = RecordReader("delay_topic_any", 0, Contracts([(0, contract)]), ())
    for after_ms in (1, 6_999, 7_000):
        headers: Headers = [("delay-after", b"%d" % after_ms), ("delay-target-topic", b"orders")]
        assert reader.read(5, 1_000_000, None, b"v", headers)[2] == 1_000_000 + after_ms
