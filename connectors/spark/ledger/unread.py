"""Completes in Python the ledger rows that column expressions have left open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from connectors.spark.common.decode import NO_KEY, key_hash
from connectors.spark.common.frames import arrow_schema
from connectors.spark.common.topics import ROW_SCHEMA
from connectors.spark.ledger.expressions import DOUBTFUL, HASHED, ORDINARY
from connectors.spark.ledger.facts import SOURCE
from connectors.spark.ledger.outputs import OutputRows
from connectors.spark.ledger.rows import (
    COLUMNS,
    LEDGER,
    NO_SHARD,
    SCHEMA,
    UNMARKED,
    Ledger,
    LedgerRow,
    batch_of,
)
from connectors.spark.ledger.sources import SourceRows
from delayservice.contract.partitioner import partition_for

Batches: TypeAlias = Iterable[pa.RecordBatch]


def completed(classified: DataFrame, ledger: Ledger) -> DataFrame:
    """Return the ledger rows of classified records, columns ``LEDGER``. ``ORDINARY`` records are
    counted in rows of ``NO_SHARD``.
    """
    return classified.mapInArrow(Completion(ledger).rows, LEDGER)


class Completion:
    """Maker of complete ledger rows on the executors."""

    def __init__(self, ledger: Ledger) -> None:
        self._readers = (SourceRows(ledger).of, OutputRows(ledger).of)
        # By hash of the shard: its partition, and the number of partitions with homes of ids.
        self._homes = _homes(ledger)

    def rows(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            reading = _column(batch, "reading")
            ordinary = int(np.count_nonzero(reading == ORDINARY))
            if ordinary:
                yield batch_of([LedgerRow(NO_SHARD, UNMARKED, SOURCE, place=ordinary)])
            is_whole, is_doubtful = reading <= HASHED, reading == DOUBTFUL
            if self._homes:
                is_away = self._are_away(batch, reading)
                is_whole, is_doubtful = is_whole & ~is_away, is_doubtful | is_away
            if is_whole.any():
                yield _ledger_rows(_chosen(batch, is_whole))
            is_source = _column(batch, "role") == SOURCE
            for read, is_its in zip(self._readers, (is_source, ~is_source), strict=True):
                is_theirs = is_doubtful & is_its
                if is_theirs.any():
                    yield from read([_records(_chosen(batch, is_theirs).column("record"))])

    def _are_away(self, batch: pa.RecordBatch, reading: np.ndarray) -> np.ndarray:
        """Return for each row whether the home of its id is another partition than its own."""
        found = np.zeros(batch.num_rows, bool)
        has_id = pc.is_valid(batch.column("id")).to_numpy(zero_copy_only=False)
        at = np.flatnonzero((reading == HASHED) & has_id)
        chosen = batch.take(pa.array(at))
        told = zip(chosen.column("id").to_pylist(), chosen.column("shard").to_pylist(), strict=True)
        found[at] = [self._is_away(record_id, shard) for record_id, shard in told]
        return found

    def _is_away(self, record_id: bytes, shard: int) -> bool:
        if shard not in self._homes:
            return False
        partition, count = self._homes[shard]
        return partition_for(record_id, count) != partition


class _Header(msgspec.Struct):
    key: str
    value: bytes | None = None


class _Record(msgspec.Struct):
    # As Spark's JSON has it: bytes in Base64, and without nulls.
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None = None
    value: bytes | None = None
    headers: list[_Header] | None = None
    value_hash: int | None = None


_decode: Final = msgspec.json.Decoder(_Record).decode
_RECORDS: Final = arrow_schema(f"{ROW_SCHEMA}, value_hash long")


def _records(told: pa.StringArray) -> pa.RecordBatch:
    rows = [msgspec.to_builtins(_decode(text), builtin_types=(bytes,)) for text in told.to_pylist()]
    return pa.RecordBatch.from_pylist(rows, _RECORDS)


def _column(batch: pa.RecordBatch, name: str) -> np.ndarray:
    column: np.ndarray = batch.column(name).to_numpy(zero_copy_only=False)
    return column


def _chosen(batch: pa.RecordBatch, is_chosen: np.ndarray) -> pa.RecordBatch:
    return batch if is_chosen.all() else batch.filter(pa.array(is_chosen))


def _ledger_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    count, keys = batch.num_rows, batch.column("key")
    hashes = np.full(count, NO_KEY, np.int32)
    if keys.null_count < count:
        hashes = np.fromiter(map(key_hash, keys.to_pylist()), np.int32, count)
    key_ms = np.where(_column(batch, "role") == SOURCE, _column(batch, "due_ms"), 0)
    made = {"key_ms": pa.array(key_ms), "key_hash": pa.array(hashes), "more": pa.nulls(count)}
    arrays = [made[name] if name in made else batch.column(name) for name in COLUMNS]
    return pa.RecordBatch.from_arrays(arrays, SCHEMA.names).cast(SCHEMA)


def _homes(ledger: Ledger) -> dict[int, tuple[int, int]]:
    newest = {place: held.entries()[-1][1] for place, held in ledger.contracts.items()}
    return {
        shard: (place[1], newest[place].id_partitions)
        for place, shard in ledger.shards.items()
        if newest[place].id_partitions
    }
