"""Rows of hours summed up on the executors, without Spark."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from connectors.spark.reconcile.digest_rows import _sum_hours, _sum_slots
from delayservice.replicas.digest import HOUR_MS, SLOT_MS, HourRow
from delayservice.replicas.digest_rows import CopyId, hour_row

START_MS = 500_000 * HOUR_MS
Slot = tuple[int, int, int]


def batch(*rows: tuple[str, Sequence[Slot]], from_ms: int = 0, life: str = "1") -> pa.RecordBatch:
    texts = [
        hour_row(CopyId(node, "any", "id", 0, life), 7, HourRow(START_MS, list(slots)))[1]
        for node, slots in rows
    ]
    count = len(rows)
    return pa.record_batch(
        {
            "node": [node for node, _ in rows],
            "topic": ["any"] * count,
            "partition": pa.array([0] * count, pa.int32()),
            "hour_ms": [START_MS] * count,
            "from_ms": [from_ms] * count,
            "value": [(text or b"").decode() for text in texts],
            "cut_life": ["1"] * count,
            "at_cut": [7] * count,
        }
    )


def sums(rows: pa.RecordBatch) -> list[tuple[object, ...]]:
    (found,) = _sum_hours([rows])
    names = ("node", "slots", "records", "hash")
    return list(zip(*(found.column(name).to_pylist() for name in names), strict=True))


def prints(rows: pa.RecordBatch) -> list[int | None]:
    (found,) = _sum_hours([rows])
    told: list[int | None] = found.column("print").to_pylist()
    return told


def test_an_hour_is_summed_up_modulo_64_bits() -> None:
    assert sums(batch(("n1", [(0, 2, 2**64 - 1), (59, 3, 6)]))) == [("n1", 2, 5, 5)]
    assert sums(batch(("n1", [(0, 1, 2**63)]))) == [("n1", 1, 1, -(2**63))]


def test_hours_are_the_same_where_the_slots_are_that_are_compared() -> None:
    early, late = (3, 1, 17), (40, 2, 19)
    both = [("n1", [early, late]), ("n2", [late]), ("n3", [late]), ("n4", [(40, 2, 20)])]
    whole = prints(batch(*both))
    assert whole[1] == whole[2]
    assert len(set(whole)) == 3
    part = prints(batch(*both, from_ms=START_MS + 4 * SLOT_MS))
    assert part[0] == part[1] == part[2] != part[3]
    assert prints(batch(*both, from_ms=START_MS + HOUR_MS)) == [None] * 4


def test_rows_of_another_life_are_left_out_and_slots_have_their_starts() -> None:
    assert sums(batch(("n1", [(1, 1, 1)]), life="2")) == []
    (found,) = _sum_slots([batch(("n1", [(3, 1, 17), (40, 2, 2**64 - 1)]), from_ms=START_MS + 1)])
    assert found.to_pylist() == [
        {
            "node": "n1",
            "topic": "any",
            "partition": 0,
            "slot_start_ms": START_MS + index * SLOT_MS,
            "count": count,
            "hash": hashed,
        }
        for index, count, hashed in ((3, 1, 17), (40, 2, -1))
    ]


def test_a_row_that_can_not_be_read_is_left_out() -> None:
    rows = batch(("n1", [(1, 1, 1)]), ("n2", [(1, 1, 1)]), ("n3", [(1, 1, 1)]))
    good = rows.column("value").to_pylist()
    bad = ["garbage", good[1].replace("0001", "wxyz"), good[2]]
    at = rows.schema.get_field_index("value")
    assert [row[0] for row in sums(rows.set_column(at, "value", pa.array(bad)))] == ["n3"]
