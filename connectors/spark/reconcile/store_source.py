"""``spark.read.format("delayservice-store")``: a node's wheel or RocksDB store as a DataFrame.

::

    spark.dataSource.register(StoreSource)
    spark.read.format("delayservice-store").load("/var/lib/delayservice/n1")

It reads a disk, a backup of one, or the disk of a running node: nothing is locked or written
(``delayservice.store.wheel.reading``, ``delayservice.store.rocks_view``). ``stored.DDL`` has the
columns. Options, whose names may be in upper or lower case:

===================  ==============================================================================
``path``             a node's state folder, a folder of stores in it, or the store of one worker
``from_ms, to_ms``   ``from_ms <= key_ms < to_ms``; files, then blocks, of other keys are not read.
                     The Python data source API of Spark 4.0 hands no filters down, so name them
``topics``           JSON, names of topics by their ids: fills ``topic`` and ``source``; shards of
                     other topics are left out
``partitions``       JSON, a list of partitions: others are left out
``mode``             ``permissive``: damage is a row with ``damage``; ``failfast``: an error
``content``          ``false``: without keys, values and headers
``hours_per_task``   number of hours of a wheel's shard in an input partition, default 1
===================  ==============================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from connectors.spark.reconcile.stored import DDL, ShardName
from delayservice.base.errors import StoreError
from delayservice.contract.times import DUE_STOP_MS
from delayservice.store.base import Frame
from delayservice.store.folder import ShardFolder, read_format, shard_name
from delayservice.store.offline import find_shards
from delayservice.store.rocks_view import RocksView, view_of, viewed_database
from delayservice.store.wheel.reading import (
    EVERYTHING,
    Damage,
    Part,
    ReadBounds,
    hours_of,
    load_state,
    read_parts,
)

FORMAT: Final = "delayservice-store"

_MODES: Final = ("permissive", "failfast")
# Number of RocksDB shards that one task reads, as opening their common database takes time.
_SHARDS_PER_TASK: Final = 16
_BATCH_ROWS: Final = 65_536
_BATCH_BYTES: Final = 32 << 20
_UNTRUSTED: Final = (
    "what the store says of itself is missing, damaged or of an older format: a node starts the "
    "whole store over from the log"
)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    bounds: ReadBounds = EVERYTHING
    topics: Mapping[str, str] | None = None
    partitions: tuple[int, ...] | None = None
    failfast: bool = False
    content: bool = True
    hours_per_task: int = 1

    @classmethod
    def of(cls, options: Mapping[str, str]) -> StoreOptions:
        mode = options.get("mode", "permissive").lower()
        if "path" not in options or mode not in _MODES:
            raise StoreError(
                f'{FORMAT} needs a folder, load("…"), and mode permissive or failfast, not {mode!r}'
            )
        try:
            return cls(
                bounds=ReadBounds(
                    int(options.get("from_ms", "0")), int(options.get("to_ms", f"{DUE_STOP_MS}"))
                ),
                topics=_json(options.get("topics"), dict[str, str]),
                partitions=_json(options.get("partitions"), tuple[int, ...]),
                failfast=mode == "failfast",
                content=options.get("content", "true").lower() != "false",
                hours_per_task=max(1, int(options.get("hours_per_task", "1"))),
            )
        except (ValueError, msgspec.MsgspecError) as exc:
            raise StoreError(f"an option of {FORMAT} can't be read: {exc}") from exc

    def to_options(self) -> dict[str, str]:
        options = {
            "from_ms": str(self.bounds.from_ms),
            "to_ms": str(self.bounds.to_ms),
            "mode": _MODES[self.failfast],
            "content": str(self.content).lower(),
            "hours_per_task": str(self.hours_per_task),
        }
        for name, value in (("topics", self.topics), ("partitions", self.partitions)):
            if value is not None:
                options[name] = msgspec.json.encode(value).decode()
        return options

    def name_of(self, folder: ShardFolder) -> ShardName | None:
        # A store whose shards can't be listed, with partition -1, is never excluded.
        if folder.partition < 0:
            return ShardName(folder.shard, folder.partition)
        if self.partitions is not None and folder.partition not in self.partitions:
            return None
        if self.topics is None:
            return ShardName(folder.shard, folder.partition)
        names = {shard_name(topic_id): name for topic_id, name in self.topics.items()}
        topic = names.get(folder.shard)
        return None if topic is None else ShardName(folder.shard, folder.partition, topic)


def _json(text: str | None, kind: type[_T]) -> _T | None:
    return None if text is None else msgspec.json.decode(text, type=kind)


def read_store(spark: SparkSession, path: str, asked: StoreOptions | None = None) -> DataFrame:
    """Return the records in a node's stores or in one worker's, columns ``stored.DDL``."""
    spark.dataSource.register(StoreSource)
    options = (asked or StoreOptions()).to_options()
    return spark.read.format(FORMAT).options(**options).load(path)


def reach_of(root: Path) -> Iterator[tuple[ShardFolder, int | None]]:
    """Yield every shard in the stores of a folder with its S (all records with offsets below S are
    stored); None if the state of the store is missing, damaged or of an older format.
    """
    for path, group in groupby(find_shards(root), lambda folder: folder.path):
        folders = list(group)
        if not _is_rocks(path):
            states = ((folder, load_state(folder)) for folder in folders)
            yield from ((f, None if state is None else state.stop_offset) for f, state in states)
            continue
        try:
            with viewed_database(Path(path)) as rocks:
                yield from [(folder, view_of(rocks, folder).stop_offset) for folder in folders]
        except StoreError:
            yield from ((folder, None) for folder in folders)


def _is_rocks(path: str) -> bool:
    found = read_format(path)
    return found is not None and found.kind == "rocksdb"


class StoreSource(DataSource):
    """Spark data source that registers the format ``delayservice-store``."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return DDL

    def reader(self, schema: StructType) -> StoreReader:
        del schema
        return StoreReader(self.options.get("path", ""), StoreOptions.of(self.options))


@dataclass
class Hours(InputPartition):
    """Hours of one shard in a wheel: the parts of its slot files that were durable at planning."""

    folder: ShardFolder
    name: ShardName
    hours: tuple[tuple[Part, ...], ...]


@dataclass
class Databases(InputPartition):
    shards: tuple[tuple[ShardFolder, ShardName], ...]


@dataclass
class Untrusted(InputPartition):
    """Shard whose state is missing, damaged or of an older format. It yields one row of damage."""

    name: ShardName


@dataclass
class StoreReader(DataSourceReader):
    path: str
    options: StoreOptions

    def partitions(self) -> list[InputPartition]:
        # Only the state of each store is read here, no records.
        planned: list[InputPartition] = []
        for path, group in groupby(find_shards(Path(self.path)), lambda folder: folder.path):
            named = [(f, name) for f in group if (name := self.options.name_of(f)) is not None]
            if _is_rocks(path):
                starts = range(0, len(named), _SHARDS_PER_TASK)
                planned += [Databases(tuple(named[at : at + _SHARDS_PER_TASK])) for at in starts]
            else:
                planned += [one for folder, name in named for one in self._hours(folder, name)]
        return planned

    def _hours(self, folder: ShardFolder, name: ShardName) -> Iterable[InputPartition]:
        state = load_state(folder)
        if state is None:
            return [Untrusted(name)]
        hours = tuple(hours_of(state.parts, self.options.bounds).values())
        step = self.options.hours_per_task
        return [Hours(folder, name, hours[at : at + step]) for at in range(0, len(hours), step)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Untrusted):
            yield self._damaged(partition.name, _whole(_UNTRUSTED))
        elif isinstance(partition, Databases):
            yield from self._read_databases(partition)
        elif isinstance(partition, Hours):
            for parts in partition.hours:
                yield from self._read_hour(partition, parts)

    def _read_databases(self, partition: Databases) -> Iterator[pa.RecordBatch]:
        # If reading fails, each shard that is not complete by then gets a row of damage.
        left = list(partition.shards)
        try:
            with viewed_database(Path(left[0][0].path)) as rocks:
                while left:
                    folder, name = left[0]
                    for frames in _batches(view_of(rocks, folder), self.options.bounds):
                        yield name.batch(None, frames, content=self.options.content)
                    left.pop(0)
        except StoreError as exc:
            for _, name in left:
                yield self._damaged(name, _whole(str(exc)))

    def _read_hour(self, partition: Hours, parts: tuple[Part, ...]) -> Iterator[pa.RecordBatch]:
        name, content = partition.name, self.options.content
        for found in read_parts(partition.folder, parts, self.options.bounds):
            if isinstance(found, Damage):
                yield self._damaged(name, found)
            else:
                yield name.batch(found.slot_ms, found.frames, content=content)

    def _damaged(self, name: ShardName, damage: Damage) -> pa.RecordBatch:
        if self.options.failfast:
            raise StoreError(
                f"shard {name.shard}/{name.partition} is damaged: {damage.why}; read it in mode "
                "permissive to see the rest, and repair it"
            )
        return name.damage_batch(damage)


def _batches(store: RocksView, bounds: ReadBounds) -> Iterator[list[Frame]]:
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


def _whole(why: str) -> Damage:
    return Damage(0, DUE_STOP_MS, 0, None, why)
