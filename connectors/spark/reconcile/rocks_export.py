"""Exports a shard of a RocksDB store as Parquet, for Spark on machines that can't reach the disk.

The columns are those of ``stored.DDL``. The store's folder is not locked or written to. If the node
is running, the export shows its store at one moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from connectors.spark.reconcile.stored import SCHEMA, ShardName
from delayservice.store.base import Frame
from delayservice.store.folder import ShardFolder
from delayservice.store.rocks_view import RocksView, viewed_store
from delayservice.store.wheel.reading import EVERYTHING, ReadBounds

_BATCH_ROWS: Final = 65_536
_BATCH_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class Exported:
    """Parquet file and its number of rows. It has all records with offsets below
    ``stop_offset``.
    """

    path: Path
    rows: int
    stop_offset: int


def export_rocks(
    shard: ShardFolder,
    target: Path,
    *,
    bounds: ReadBounds = EVERYTHING,
    topic: str | None = None,
    content: bool = True,
) -> Exported:
    """Write the records of one shard to a Parquet file, which appears at ``target`` only when it is
    complete. Without ``content``, keys, values and headers are left out.
    """
    name = ShardName(shard.shard, shard.partition, topic)
    unfinished = target.with_name(f"{target.name}.new")
    rows = 0
    with viewed_store(shard) as store:
        try:
            with pq.ParquetWriter(unfinished, SCHEMA, compression="zstd") as writer:
                for frames in batches(store, bounds):
                    writer.write_batch(name.batch(None, frames, content=content))
                    rows += len(frames)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        stop_offset = store.stop_offset
    unfinished.replace(target)
    return Exported(target, rows, stop_offset)


def batches(store: RocksView, bounds: ReadBounds) -> Iterator[list[Frame]]:
    # Up to 65,536 records or some 32 MiB are in memory at a time.
    batch: list[Frame] = []
    size = 0
    for frame in store.scanner().frames((bounds.from_ms, -1), bounds.to_ms - 1):
        batch.append(frame)
        size += len(frame[3])
        if len(batch) >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
