"""``spark.read.format("delayservice-store")``: a node's wheel or RocksDB store as a DataFrame.

::

    spark.dataSource.register(StoreSource)
    spark.read.format("delayservice-store").load("/var/lib/delayservice/n1")

It reads a disk, a backup of one, or the disk of a running node: nothing is locked or written
(``delayservice.store.offline``). ``stored.DDL`` has the columns. Options, whose names may be in
upper or lower case:

===================  ==============================================================================
``path``             a node's state folder, a folder of stores in it, or the store of one worker
``from_ms, to_ms``   ``from_ms <= key_ms < to_ms``; files, then blocks, of other keys are not read.
                     The Python data source API of Spark 4.0 hands no filters down, so name them
``topics``           JSON, names of topics by their ids: fills ``topic`` and ``source``; shards of
                     other topics are left out
``partitions``       JSON, a list of partitions: others are left out
``mode``             ``permissive``: damage is a row with ``damage``; ``failfast``: an error
``content``          ``false``: without keys, values and headers
``hours_per_task``   number of hours of a wheel in an input partition, default 1
===================  ==============================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from connectors.spark.reconcile.stored import DDL, ShardName
from delayservice.base.errors import StoreDamagedError, StoreError
from delayservice.contract.times import DUE_STOP_MS
from delayservice.store.base import Frame
from delayservice.store.folder import ShardFolder, shard_name
from delayservice.store.offline import (
    EVERYTHING,
    HOUR_MS,
    Damage,
    ReadBounds,
    each_store,
    find_stores,
    open_view,
    read,
)
from delayservice.store.wheel import Wheel

FORMAT: Final = "delayservice-store"

_MODES: Final = ("permissive", "failfast")
# Number of RocksDB shards that one task reads, as opening their common database takes time.
_SHARDS_PER_TASK: Final = 16
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
    for folder, store in each_store(root):
        yield folder, None if isinstance(store, StoreError) else store.stop_offset


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
class Part(InputPartition):
    """Some shards of a store, in a range of key times."""

    path: str
    shards: tuple[ShardName, ...]
    bounds: ReadBounds


@dataclass
class Untrusted(InputPartition):
    """Store that a node would start over. It yields one row of damage."""

    name: ShardName
    why: str


@dataclass
class StoreReader(DataSourceReader):
    path: str
    options: StoreOptions

    def partitions(self) -> list[InputPartition]:
        # Only the state of each store is read here, no records.
        return [part for folder in find_stores(Path(self.path)) for part in self._parts(folder)]

    def _parts(self, folder: Path) -> Iterator[InputPartition]:
        path = str(folder)
        try:
            with open_view(folder) as shards:
                named = [self.options.name_of(ShardFolder(path, *n)) for n in sorted(shards.shards)]
                chosen = tuple(name for name in named if name is not None)
                if isinstance(shards, Wheel):
                    for bounds in self._hours(shards):
                        yield Part(path, chosen, bounds)
                    return
        except StoreDamagedError as exc:
            yield Untrusted(ShardName("", -1), str(exc))
            return
        for at in range(0, len(chosen), _SHARDS_PER_TASK):
            yield Part(path, chosen[at : at + _SHARDS_PER_TASK], self.options.bounds)

    def _hours(self, wheel: Wheel) -> Iterator[ReadBounds]:
        asked = self.options.bounds
        hours = sorted(
            {
                slot.start_ms // HOUR_MS * HOUR_MS
                for slot in wheel.slots.by_start.values()
                if slot.start_ms < asked.to_ms and slot.stop_ms > asked.from_ms
            }
        )
        firsts = hours[:: self.options.hours_per_task]
        for from_ms, to_ms in pairwise([*firsts, DUE_STOP_MS]):
            yield ReadBounds(max(from_ms, asked.from_ms), min(to_ms, asked.to_ms))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Untrusted):
            yield self._damaged(partition.name, _whole(partition.why))
        elif isinstance(partition, Part):
            yield from self._read_part(partition)

    def _read_part(self, part: Part) -> Iterator[pa.RecordBatch]:
        # If reading fails, each shard that is not complete by then gets a row of damage.
        left = list(part.shards)
        try:
            with open_view(Path(part.path)) as shards:
                slot_ms = shards.slots.slot_ms if isinstance(shards, Wheel) else None
                while left:
                    store = shards.store(left[0].shard, left[0].partition)
                    store.open()
                    yield from self._read(read(store, part.bounds), left[0], slot_ms)
                    left.pop(0)
        except StoreDamagedError as exc:
            for name in left:
                yield self._damaged(name, _whole(str(exc)))

    def _read(
        self, rows: Iterator[list[Frame] | Damage], name: ShardName, slot_ms: int | None
    ) -> Iterator[pa.RecordBatch]:
        content = self.options.content
        for found in rows:
            if isinstance(found, Damage):
                yield self._damaged(name, found)
            elif slot_ms is None:
                yield name.batch(None, found, content=content)
            else:
                for start_ms, frames in groupby(found, lambda f: f[0] - f[0] % slot_ms):
                    span = (start_ms, start_ms + slot_ms)
                    yield name.batch(span, list(frames), content=content)

    def _damaged(self, name: ShardName, damage: Damage) -> pa.RecordBatch:
        if self.options.failfast:
            raise StoreError(
                f"shard {name.shard}/{name.partition} is damaged: {damage.why}; read it in mode "
                "permissive to see the rest, and repair it"
            )
        return name.damage_batch(damage)


def _whole(why: str) -> Damage:
    return Damage(0, DUE_STOP_MS, 0, None, why)
