"""Makes in Python the ledger rows that column expressions could not complete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from connectors.spark.common.decode import key_hash
from connectors.spark.ledger.expressions import COMPLETE, DOUBTFUL, HASHED
from connectors.spark.ledger.outputs import OutputRows
from connectors.spark.ledger.rows import COLUMNS, LEDGER, SCHEMA, Ledger
from connectors.spark.ledger.sources import SourceRows
from delayservice.contract.partitioner import partition_for

Batches: TypeAlias = Iterable[pa.RecordBatch]


def ledger_of(classified: DataFrame, ledger: Ledger, *, of_sources: bool) -> DataFrame:
    """Return ledger rows for all classified records except ``ORDINARY`` ones.

    ``classified`` is read twice: persist or write it unless reading is fast.
    """
    complete = classified.where(sf.col("reading") == COMPLETE).select(*COLUMNS)
    return complete.unionByName(read_in_python(classified, ledger, of_sources=of_sources))


def read_in_python(classified: DataFrame, ledger: Ledger, *, of_sources: bool) -> DataFrame:
    """Return ledger rows for those classified records that are ``HASHED`` or ``DOUBTFUL``."""
    read = (SourceRows(ledger) if of_sources else OutputRows(ledger)).of
    rest = classified.where(sf.col("reading").isin(HASHED, DOUBTFUL))
    return rest.select(*COLUMNS, "key", "reading", "record").mapInArrow(
        _Rest(read, _homes(ledger)).rows, LEDGER
    )


class _Rest:
    """Maker of the rows of ``read_in_python`` on the executors; ``read`` makes rows of whole
    records. ``homes``: by hash of the shard: its partition, and the number of partitions with homes
    of ids.
    """

    def __init__(
        self, read: Callable[[Batches], Batches], homes: dict[int, tuple[int, int]]
    ) -> None:
        self._read = read
        self._homes = homes

    def rows(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            is_hashed = pc.equal(batch.column("reading"), HASHED)
            hashed, is_doubtful = batch.filter(is_hashed), pc.invert(is_hashed)
            if hashed.num_rows and self._homes:
                is_away = self._is_away(hashed)
                yield from self._read(_records(hashed.filter(is_away)))
                hashed = hashed.filter(pc.invert(is_away))
            if hashed.num_rows:
                yield _with_key_hashes(hashed)
            yield from self._read(_records(batch.filter(is_doubtful)))

    def _is_away(self, batch: pa.RecordBatch) -> pa.Array:
        """Return for each row whether the home of its id is another partition than its own."""
        ids, shards = (batch.column(name).to_pylist() for name in ("id", "shard"))
        return pa.array(map(self._is_foreign, ids, shards))

    def _is_foreign(self, record_id: bytes | None, shard: int) -> bool:
        if record_id is None or shard not in self._homes:
            return False
        partition, count = self._homes[shard]
        return partition_for(record_id, count) != partition


def _records(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    if not batch.num_rows:
        return []
    return [pa.RecordBatch.from_struct_array(batch.column("record"))]


def _with_key_hashes(batch: pa.RecordBatch) -> pa.RecordBatch:
    hashes = np.fromiter(map(key_hash, batch.column("key").to_pylist()), np.int32, batch.num_rows)
    arrays = [batch.column(name) for name in COLUMNS]
    arrays[COLUMNS.index("key_hash")] = pa.array(hashes)
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _homes(ledger: Ledger) -> dict[int, tuple[int, int]]:
    newest = {place: held.entries()[-1][1] for place, held in ledger.contracts.items()}
    return {
        shard: (place[1], newest[place].id_partitions)
        for place, shard in ledger.shards.items()
        if newest[place].id_partitions
    }
