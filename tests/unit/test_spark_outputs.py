"""Records of output topics become rows of the ledger, or settle nothing."""

from __future__ import annotations

from connectors.spark.ledger.facts import LETTER
from connectors.spark.ledger.outputs import OutputRows
from connectors.spark.ledger.rows import NO_SHARD, UNMARKED, Ledger
from delayservice.contract.dead_letters import marker
from delayservice.contract.entry import Headers
from tests.unit.spark_world import batch_of_records

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
    rows = [(n, 1_000, None, None, headers) for n, headers in enumerate(letters)]
    batch = batch_of_records(("letters", 0), rows)
    return [row for made in OutputRows(LEDGER).of([batch]) for row in made.to_pylist()]


def test_a_dead_letter_settles_its_record_whatever_headers_that_had() -> None:
    (row,) = rows_of_letters([("delay-replayed", b"0"), *WHY])
    assert (row["shard"], row["offset"], row["role"]) == (0, 7, LETTER)


def test_a_marker_of_a_replay_settles_nothing() -> None:
    (row,) = rows_of_letters(list(marker([0, 1])))
    assert (row["shard"], row["offset"], row["place"]) == (NO_SHARD, UNMARKED, 1)
