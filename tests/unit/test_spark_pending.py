"""Where a log has to be read from, so that no pending record is missed."""

from __future__ import annotations

import random

from connectors.spark.common.pending import CLOCKS_MS, written_since_ms
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import SCHEDULE
from delayservice.contract.record import RecordReader

HOUR_MS = 3_600_000
NOW_MS = 1_795_226_400_000
CONTRACTS = Contracts(
    [
        (0, Contract(roll_window_ms=HOUR_MS)),
        (
            50,
            Contract(roll_window_ms=9 * HOUR_MS, roll_spread_ms=HOUR_MS),
        ),
        (100, Contract(roll_window_ms=2 * HOUR_MS)),
    ]
)


def test_no_record_of_a_key_was_written_before_the_time_that_its_contracts_say() -> None:
    chance = random.Random(7)
    reader = RecordReader("delay_topic_any", 0, CONTRACTS, [])
    widest_ms = 0
    for offset in range(150):
        written_ms = NOW_MS + chance.randrange(HOUR_MS)
        due_ms = written_ms + chance.randrange(20 * HOUR_MS)
        headers = [("delay-at", b"%d" % due_ms), ("delay-target-topic", b"to")]
        (entry,) = reader.read_batch([(offset, written_ms, None, b"", list(headers))])
        assert entry[1] == SCHEDULE
        assert written_since_ms(CONTRACTS, entry[2]) <= written_ms - CLOCKS_MS
        widest_ms = max(widest_ms, entry[2] - written_ms)
    assert written_since_ms(CONTRACTS, NOW_MS + widest_ms) >= NOW_MS - CLOCKS_MS - HOUR_MS


def test_a_log_is_never_read_from_before_the_epoch() -> None:
    assert written_since_ms(CONTRACTS, 5) == 0
