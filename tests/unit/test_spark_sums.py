"""Sums by block come to zero exactly when everything is settled once, in whatever order it came."""

from __future__ import annotations

import random

import pyarrow as pa

from connectors.spark.audit.sums import BLOCK_BITS, merged, summed
from connectors.spark.ledger.facts import (
    COPIED,
    DELIVERED,
    DISCLAIMED,
    LETTER,
    OUTCOME,
    SOURCE,
)
from connectors.spark.ledger.rows import NO_SHARD, Values, batch_of

SETTLING = (DELIVERED, LETTER, OUTCOME, COPIED)


def row(role: int, offset: int, shard: int = 0, key_ms: int = 0) -> Values:
    return (shard, offset, role, key_ms, 0, 0, 0, 0, 0, 0, 0, None)


def sums_of(*parts: list[Values]) -> dict[tuple[int, int], tuple[int, int, int]]:
    found: dict[tuple[int, int], tuple[int, int, int]] = {}
    for batch in merged(summed(batch_of(part)) for part in parts):
        for shard, block, *rest in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            assert (shard, block) not in found
            found[shard, block] = (rest[0], rest[1], rest[2])
    return found


def test_blocks_come_to_zero_whatever_order_their_rows_are_read_in() -> None:
    generator = random.Random(11)
    offsets = generator.sample(range(3 << BLOCK_BITS), 5_000)
    sources = [row(SOURCE, offset) for offset in offsets]
    settling = [row(generator.choice(SETTLING), offset) for offset in offsets]
    rows = [*sources, *settling]
    generator.shuffle(rows)
    sums = sums_of(rows[:100], rows[100:3_000], rows[3_000:])
    assert set(sums) == {(0, block) for block in range(3)}
    assert all(found[:2] == (0, 0) for found in sums.values())


def test_a_loss_beside_a_duplicate_does_not_come_to_zero() -> None:
    rows = [row(SOURCE, 1), row(SOURCE, 2), row(DELIVERED, 2), row(DELIVERED, 2)]
    balance, hashed, _ = sums_of(rows)[0, 0]
    assert balance == 0
    assert hashed != 0


def test_a_block_knows_when_its_last_record_is_to_be_settled() -> None:
    rows = [row(SOURCE, 1, key_ms=7), row(SOURCE, 2, key_ms=9), row(DELIVERED, 1)]
    assert sums_of(rows)[0, 0][2] == 9
    assert sums_of([row(DELIVERED, 1)])[0, 0][2] == 0


def test_shards_and_blocks_are_kept_apart() -> None:
    size = 1 << BLOCK_BITS
    places = [(1, size - 1), (1, size), (2, size)]
    rows = [row(SOURCE, offset, shard) for shard, offset in places]
    assert {place: found[0] for place, found in sums_of(rows).items()} == {
        (1, 0): 1,
        (1, 1): 1,
        (2, 1): 1,
    }


def test_what_settles_nothing_does_not_count() -> None:
    rows = [row(SOURCE, 1), row(DISCLAIMED, 1), row(0, 1, NO_SHARD)]
    assert sums_of(rows)[0, 0][0] == 1


def test_nothing_comes_of_nothing() -> None:
    empty = summed(batch_of([row(0, 0, NO_SHARD)]))
    assert empty.num_rows == 0
    assert list(merged([empty])) == []


def test_sums_of_a_block_settled_many_times_do_not_overflow() -> None:
    rows = [row(DELIVERED, offset) for offset in range(1 << BLOCK_BITS)] * 3
    batch = summed(batch_of(rows))
    assert batch.column("balance").to_pylist() == [-3 << BLOCK_BITS]
    assert (
        batch.column("hash").to_pylist()[0]
        == 3 * pa.compute.sum(summed(batch_of(rows[: 1 << BLOCK_BITS])).column("hash")).as_py()
    )
