"""Spreading is even, within its span, and never changes."""

from __future__ import annotations

from collections import Counter

from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import Headers
from delayservice.contract.record import RecordReader
from delayservice.contract.times import spread_ms

HOUR_MS = 3_600_000


def test_the_spread_of_a_window_follows_from_the_log() -> None:
    """Changing one of these moves the keys of records that are pending somewhere."""
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
