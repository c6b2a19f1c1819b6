"""Records of output topics become rows of the ledger, or settle nothing."""

from __future__ import annotations

import pyarrow as pa

from connectors.spark.ledger.facts import (
    LETTER,
)
from connectors.spark.ledger.outputs import OutputRows
from connectors.spark.ledger.rows import NO_SHARD, UNMARKED, Ledger
from delayservice.contract.dead_letters import marker
from delayservice.contract.entry import Headers

LEDGER = Ledger(
    shards={("delay_topic_any", 3): 0},
    topics={"letters": 0},
    contracts={},
    roles={"letters": LETTER},
)
WHY: Headers = [
    ("delay-error", b"time-invalid"),
    ("delay-source", b"delay_topic_any:3:7"),
    ("delay-settles", b"7"),
]


def rows_of_letters(*letters: Headers) -> list[dict[str, object]]:
    count = len(letters)
    shaped = [[{"key": name, "value": value} for name, value in held] for held in letters]
    batch = pa.record_batch(
        {
            "topic": pa.array(["letters"] * count),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "timestamp_ms": pa.array([1_000] * count, pa.int64()),
            "key": pa.array([None] * count, pa.binary()),
            "value": pa.array([None] * count, pa.binary()),
            "headers": pa.array(
                shaped, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
            ),
        }
    )
    return [row for made in OutputRows(LEDGER).of([batch]) for row in made.to_pylist()]


def test_a_dead_letter_settles_its_record_whatever_headers_that_had() -> None:
    (row,) = rows_of_letters([("delay-replayed", b"0"), *WHY])
    assert (row["shard"], row["offset"], row["role"]) == (0, 7, LETTER)


def test_a_marker_of_a_replay_settles_nothing() -> None:
    (row,) = rows_of_letters(list(marker([0, 1])))
    assert (row["shard"], row["offset"], row["place"]) == (NO_SHARD, UNMARKED, 1)
