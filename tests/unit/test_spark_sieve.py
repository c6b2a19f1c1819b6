"""Sums of blocks: equal for what was delivered correctly, and for nothing else."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from connectors.spark.audit.rules import Rules
from connectors.spark.audit.sieve import BLOCK_BITS, PLAIN, ROW, SUM, Sieve
from connectors.spark.ledger.facts import DELIVERED, SOURCE
from connectors.spark.ledger.rows import LedgerRow, batch_of
from delayservice.contract.entry import CANCEL
from delayservice.engine.cursor import Cursor
from tests.unit.test_spark_judge import LATER, RULES, SHARD, TARGET

LedgerRows = list[LedgerRow]


def history(count: int = 60) -> LedgerRows:
    """So many records from offset 20 on, each with its delivery."""
    rows = []
    for offset in range(20, 20 + count):
        due_ms, key_hash = 500 + offset, offset % 7
        row = LedgerRow(0, offset, SOURCE, due_ms=due_ms, content=offset * 31, topic=TARGET)
        rows.append(row._replace(key_ms=due_ms, at_ms=400))
        partition = key_hash % RULES.partitions[TARGET]
        row = row._replace(role=DELIVERED, at_ms=due_ms + 5, place=offset)
        rows.append(row._replace(partition=partition, key_hash=key_hash))
    return rows


def sifted(
    rows: LedgerRows, *, adds_up: bool = True, cut: int = 0, rules: Rules = RULES
) -> list[dict[str, Any]]:
    random.Random(1).shuffle(rows)
    batches = [batch_of(part) for part in (rows[:cut], rows[cut:]) if part]
    made = Sieve(rules, adds_up=adds_up).rows(batches)
    return [row for batch in made for row in batch.to_pylist()]


def is_even(rows: LedgerRows, cut: int = 0, rules: Rules = RULES) -> bool:
    """As ``sieve.blocks_of``, of a single block."""
    sums = [row for row in sifted(rows, cut=cut, rules=rules) if row["part"] == SUM]
    assert {(row["shard"], row["block"]) for row in sums} == {(0, 0)}
    asked = 0
    for row in sums:
        asked ^= row["asked"]
    steps = sum(row["steps"] for row in sums)
    return steps == 0 and asked == 0 and all(row["is_usual"] for row in sums)


@pytest.mark.parametrize("cut", [0, 1, 50])
def test_a_block_of_correct_deliveries_is_even(cut: int) -> None:
    rows = history()
    assert is_even(list(rows), cut)
    sums = [row for row in sifted(rows, cut=cut) if row["part"] == SUM]
    assert sum(row["sound"] for row in sums) == len(rows) // 2
    assert min(row["at_ms"] for row in sums if row["role"] == DELIVERED) == 525
    assert {row["at_ms"] for row in sums if row["role"] == SOURCE} == {None}
    places: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        if row.role == DELIVERED:
            places[row.partition].append(row.place)
    for partition, told in places.items():
        ranges = [r for r in sums if r["role"] == DELIVERED and r["partition"] == partition]
        assert min(r["place"] for r in ranges) == min(told)
        assert max(r["last_place"] for r in ranges) == max(told)


DEFECTS: dict[str, Callable[[LedgerRows], None]] = {
    "lost": lambda rows: rows.remove(rows[1]),
    "without a record": lambda rows: rows.remove(rows[0]),
    "doubled": lambda rows: rows.append(rows[1]),
    "doubled twice": lambda rows: rows.extend([rows[1], rows[1]]),
    "swapped due times": lambda rows: swap(rows, "due_ms"),
    "swapped contents": lambda rows: swap(rows, "content"),
    "early": lambda rows: change(rows, at_ms=rows[1].due_ms - 1),
    "another target": lambda rows: change(rows, topic=1, partition=0, key_hash=-1),
    "another partition": lambda rows: change(rows, partition=(rows[1].partition + 1) % 4),
}


def change(rows: LedgerRows, **columns: int) -> None:
    rows[1] = rows[1]._replace(**columns)  # type: ignore[arg-type]  # a test's own


def swap(rows: LedgerRows, name: str) -> None:
    first, second = getattr(rows[1], name), getattr(rows[3], name)
    rows[1] = rows[1]._replace(**{name: second})
    rows[3] = rows[3]._replace(**{name: first})


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_block_with_a_defect_is_not_even(defect: str) -> None:
    rows = history()
    DEFECTS[defect](rows)
    assert not is_even(rows)


def test_pending_records_leave_a_block_even_and_overdue_ones_do_not() -> None:
    far = history(1)[0]._replace(offset=90, key_ms=LATER.key[0] + 1)
    assert is_even([*history(), far])
    overdue = replace(RULES, overdue_since_ms=LATER.key[0] + 2)
    assert not is_even([*history(), far], rules=overdue)


def test_a_record_settled_by_the_later_cursor_alone_needs_its_delivery() -> None:
    between = history(1)[0]._replace(offset=90, key_ms=LATER.key[0] - 1)
    assert not is_even([*history(), between])


def test_a_late_delivery_is_not_usual_where_lateness_is_limited() -> None:
    assert not is_even(history(), rules=replace(RULES, late_ms=4))
    assert is_even(history(), rules=replace(RULES, late_ms=5))


def test_flags_are_what_the_cursors_say() -> None:
    rng = random.Random(2)
    rows = [
        LedgerRow(0, rng.randint(0, 250), SOURCE, CANCEL, key_ms=rng.choice([900, 1_000, 2_000]))
        for _ in range(500)
    ]
    rows += [row._replace(key_ms=row.key_ms + rng.randint(-1, 1)) for row in rows]

    def said(cursor: Cursor, row: dict[str, Any]) -> bool:
        return cursor.has_settled((row["key_ms"], row["offset"]), -1)

    made = sifted(rows)
    assert Counter(row["part"] for row in made) == {ROW: len(rows)}
    for row in made:
        assert row["is_passed"] == (row["offset"] < SHARD.earlier.offset)
        assert row["is_settled"] == said(SHARD.earlier, row)
        assert row["is_counted"] == said(SHARD.later, row)


def test_without_sums_every_row_is_passed_on() -> None:
    rows = history()
    made = sifted(rows, adds_up=False)
    assert Counter(row["part"] for row in made) == {PLAIN: len(rows)}
    assert {LedgerRow(*(row[name] for name in LedgerRow._fields)) for row in made} == set(rows)


def test_blocks_and_shards_are_apart() -> None:
    far = [row._replace(offset=row.offset + (1 << BLOCK_BITS)) for row in history(3)]
    unknown = [row._replace(shard=7) for row in history(1)]
    sums = [row for row in sifted([*history(3), *far, *unknown]) if row["part"] == SUM]
    assert {(row["shard"], row["block"]) for row in sums} == {(0, 0), (0, 1), (7, 0)}
    assert not any(row["sound"] for row in sums if row["shard"] == 7)


def test_sums_of_sources_alone_are_apart_too() -> None:
    sources = history(3)[::2]
    far = [row._replace(offset=row.offset + (1 << BLOCK_BITS)) for row in sources]
    unknown = [row._replace(shard=7) for row in sources]
    sums = [row for row in sifted([*sources, *far, *unknown]) if row["part"] == SUM]
    assert [(row["shard"], row["block"], row["sound"]) for row in sums] == [
        (0, 0, 3),
        (0, 1, 0),
        (7, 0, 0),
    ]


def test_no_rows_make_no_sums() -> None:
    assert list(Sieve(RULES, adds_up=True).rows([batch_of([])])) == []
