"""Arrow batches are read as the service reads records."""

from __future__ import annotations

import random

import pyarrow as pa

from connectors.spark.common.decode import (
    NO_KEY,
    headers_of,
    key_hash,
    rows_of,
    runs,
)
from delayservice.contract.entry import UNREADABLE, PolledRecord
from delayservice.contract.partitioner import partition_for
from tests.unit.spark_world import batch_of_records


def batch_of(
    rows: list[PolledRecord], topic: str = "delay_topic_any", partition: int = 3
) -> pa.RecordBatch:
    return batch_of_records((topic, partition), rows)


def test_rows_are_those_that_were_written_also_in_a_slice() -> None:
    rows: list[PolledRecord] = [
        (7, 1_000, b"k", b"v", [("a", b"1"), ("a", None), ("b", b"")]),
        (8, 1_001, None, None, []),
        (9, 1_002, b"", b"\x00\xff", [("c", b"\xfe")]),
    ]
    batch = batch_of(rows)
    assert rows_of(batch) == rows
    assert rows_of(batch.slice(1)) == rows[1:]


def test_a_record_without_headers_has_none() -> None:
    batch = batch_of([(0, 0, None, None, None), (1, 0, None, None, [("a", b"1")])])
    assert headers_of(batch) == [[], [("a", b"1")]]


def test_headers_that_the_service_cant_read_are_unreadable() -> None:
    names = ["\N{REPLACEMENT CHARACTER}x", "a\0b", "a"]
    rows: list[PolledRecord] = [(n, 0, None, None, [(name, b"1")]) for n, name in enumerate(names)]
    found = headers_of(batch_of(rows))
    assert [headers is UNREADABLE for headers in found] == [True, True, False]


def test_a_batch_is_parted_by_the_partition_that_records_come_from() -> None:
    parts = [batch_of([(n, 0, None, None, None)], t, p) for n, t, p in [(1, "a", 0), (2, "b", 0)]]
    parts.append(batch_of([(3, 0, None, None, None), (4, 0, None, None, None)], "b", 70_000))
    joined = pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
    found = [(*place, run.num_rows) for place, run in runs(joined)]
    assert found == [("a", 0, 1), ("b", 0, 1), ("b", 70_000, 2)]


def test_keys_are_hashed_as_a_producer_does() -> None:
    generator = random.Random(7)
    keys = [generator.randbytes(generator.randrange(1, 40)) for _ in range(500)]
    assert [key_hash(key) % 12 for key in keys] == [partition_for(key, 12) for key in keys]
    assert [key_hash(None), key_hash(b"")] == [NO_KEY, NO_KEY]
