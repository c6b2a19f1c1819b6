"""Sums over blocks of source offsets: what the streaming audit keeps instead of records.

A source record adds one and a hash of its offset to its block, what settles it takes both off
again. So a block of which all is settled once comes to zero, in whatever order its rows are read,
and a lost or doubled settlement keeps it from there. Sums of parts may be added in any order, and a
block at zero need not be kept: what comes later begins at zero again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from connectors.spark.ledger.facts import (
    SETTLING,
    SOURCE,
)
from connectors.spark.ledger.outputs import OutputRows
from connectors.spark.ledger.rows import NO_SHARD, Ledger
from connectors.spark.ledger.sources import SourceRows

BLOCK_BITS: Final = 13
"""8,192 offsets in a block."""

SUMS: Final = "shard int, block long, balance long, hash long, latest_ms long"
"""``balance``: source records less settlements; ``hash``: the same of their offsets' hashes;
``latest_ms``: when the last of the source records is to be settled, 0 where there is none."""

_HASH_MASK: Final = np.uint64((1 << 48) - 1)
"""Keeps 48 bits of a hash, so that sums of a block don't overflow, however often it is settled."""
_BLOCK_MASK: Final = (1 << 48) - 1
_SCHEMA: Final = pa.schema(
    [
        ("shard", pa.int32()),
        ("block", pa.int64()),
        ("balance", pa.int64()),
        ("hash", pa.int64()),
        ("latest_ms", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Sums:
    """Makes rows of ``SUMS`` of records. Sent to the executors as it is."""

    ledger: Ledger

    def of_sources(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Return the sums of delay topics: records add to them, copies are subtracted."""
        for rows in SourceRows(self.ledger).of(batches):
            yield summed(rows)

    def of_outputs(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Return the sums of all other topics, which are subtracted."""
        for rows in OutputRows(self.ledger).of(batches):
            yield summed(rows)


def summed(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of the ledger, by shard and block."""
    shard = rows.column("shard").to_numpy()
    role = rows.column("role").to_numpy()
    counts = (shard != NO_SHARD) & np.isin(role, [SOURCE, *SETTLING])
    offset = rows.column("offset").to_numpy()[counts]
    sign = np.where(role[counts] == SOURCE, 1, -1).astype(np.int64)
    return _grouped(
        shard[counts],
        offset >> BLOCK_BITS,
        sign,
        sign * hashes_of(offset),
        rows.column("key_ms").to_numpy()[counts],
    )


def merged(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """Sums of all that a task has, a row for each block. It is to have all of a block: Spark 4.0
    fails at a group of several rows in ``applyInPandasWithState``, with the pyarrow of today.
    """
    parts = [batch for batch in batches if batch.num_rows]
    if parts:
        joined = pa.concat_batches(parts)
        yield _grouped(*(column.to_numpy() for column in joined.columns))


def _grouped(
    shard: NDArray[np.int32],
    block: NDArray[np.int64],
    balance: NDArray[np.int64],
    hashed: NDArray[np.int64],
    latest_ms: NDArray[np.int64],
) -> pa.RecordBatch:
    places, at = np.unique((shard.astype(np.int64) << 48) | block, return_inverse=True)
    sums = np.zeros((2, len(places)), np.int64)
    np.add.at(sums[0], at, balance)
    np.add.at(sums[1], at, hashed)
    latest = np.zeros(len(places), np.int64)
    np.maximum.at(latest, at, latest_ms)
    shards = (places >> 48).astype(np.int32)
    columns = (shards, places & _BLOCK_MASK, *sums, latest)
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=_SCHEMA)


def hashes_of(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """48 bits of each offset's hash (the finaliser of splitmix64)."""
    mixed = offsets.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return (mixed & _HASH_MASK).astype(np.int64)
