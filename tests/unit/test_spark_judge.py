"""What no small history says of the judge: floods, and partitions that were added to a target."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from connectors.spark.audit import row_judges
from connectors.spark.audit.row_judges import COUNT, ROWS_MAX, PassedTimes, RowJudge
from connectors.spark.audit.rules import Rules, ShardRules
from connectors.spark.audit.verdicts import FOUND, SETTLED, UNJUDGED, UNJUDGED_ROLE
from connectors.spark.common.frames import batch_of
from connectors.spark.ledger.facts import DELIVERED, SOURCE, SourceFacts
from connectors.spark.ledger.rows import SCHEMA, LedgerRow, pack
from delayservice.contract.contracts import Contract, Contracts
from delayservice.engine.cursor import Cursor

TARGET = 2
EARLIER, LATER = Cursor((1_000, 5), 100), Cursor((2_000, 5), 200)
SHARD = ShardRules("delay_topic_any:0", EARLIER, LATER, 10, 300, Contracts([(0, Contract())]))
RULES = Rules(
    shards={0: SHARD},
    topics={0: "letters", 1: "other", TARGET: "target"},
    partitions={0: 1, 1: 1, TARGET: 4},
    read=frozenset({0, 1, TARGET}),
    dead_letter=0,
    outcomes=1,
    delay_topics=frozenset(),
    complete_since_ms={},
    seen_ms={TARGET: (0, 0, 0, 0)},
)
RECORD = LedgerRow(0, 50, SOURCE, key_ms=900, due_ms=900, at_ms=400, content=77, topic=TARGET)
DELIVERY = RECORD._replace(role=DELIVERED, key_ms=0, at_ms=900, partition=3, place=0)


def judged(rows: list[LedgerRow], *cuts: int) -> list[dict[str, Any]]:
    """Verdicts on rows of records without ids, in batches that end at ``cuts``."""
    told = [(*row, row.offset) for row in rows]
    schema = SCHEMA.append(pa.field("family", pa.int64()))
    batches = [batch_of(told[a:b], schema) for a, b in pairwise([0, *cuts, len(told)])]
    judge_of = RowJudge(RULES, PassedTimes())
    return [one for batch in judge_of.judge(batches) for one in batch.to_pylist()]


def test_rows_of_one_record_meet_across_batches() -> None:
    rows = [row._replace(offset=offset) for offset in range(20, 60) for row in (RECORD, DELIVERY)]
    for cut in (1, 2, 39, 79):
        made = judged(rows, cut)
        counts = {one["kind"]: one["number"] for one in made if one["verdict"] == COUNT}
        assert not [one for one in made if one["verdict"] in (FOUND, UNJUDGED)]
        assert (counts["sources"], counts["delivered"], counts["outputs"]) == (40, 40, 40)


def test_a_flood_of_outputs_of_one_record_is_one_more_finding() -> None:
    flood = [DELIVERY._replace(place=n) for n in range(ROWS_MAX)]
    found = [one for one in judged([RECORD, *flood, *flood]) if one["verdict"] == FOUND]
    kinds = Counter(one["kind"] for one in found)
    assert kinds == {"duplicated": ROWS_MAX - 2, "flooded": 1}
    assert (
        found[-1]["detail"]
        == f"{2 * ROWS_MAX + 1} rows name it, and the first {ROWS_MAX} were judged"
    )


def test_an_id_of_too_many_records_is_not_judged_nor_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_judges, "ID_RECORDS_MAX", 3)
    named = RECORD._replace(key_ms=1_500, due_ms=1_500, more=pack(SourceFacts(record_id=b"a")))
    rows = [named._replace(offset=offset) for offset in range(20, 30)]
    batch = batch_of([(*row, 7) for row in rows], SCHEMA.append(pa.field("family", pa.int64())))
    for keeps in (False, True):
        judge_of = RowJudge(RULES, PassedTimes(), keeps=keeps)
        made = [one for b in judge_of.judge([batch]) for one in b.to_pylist()]
        told = [(one["kind"], one["offset"]) for one in made if one["verdict"] == UNJUDGED]
        assert told == [("id_flooded", 20)]
        assert not [one for one in made if one["verdict"] == FOUND]
        kept = Counter(one["verdict"] for one in made if one["verdict"] not in (COUNT, UNJUDGED))
        assert kept == ({SETTLED: 10} if keeps else {})
    left = iter([(7, row) for row in rows])
    first = next(RowJudge(RULES, PassedTimes()).verdicts(left))
    assert len(list(left)) == 5
    assert first.row is not None
    assert first.row.kind == UNJUDGED_ROLE  # it may be settled later, as it should


@pytest.mark.parametrize(("partition", "is_right"), [(5 % 4, True), (5 % 3, True), (0, False)])
def test_a_partition_that_was_right_before_partitions_were_added_is_right(
    partition: int, *, is_right: bool
) -> None:
    grown = replace(RULES, seen_ms={TARGET: (0, 0, 5_000, 6_000)})
    assert grown.may_hold(TARGET, partition, 5, 900) is is_right
    assert RULES.may_hold(TARGET, partition, 5, 900) is (partition == 5 % 4)
