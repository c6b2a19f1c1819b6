"""``spark.read.format("delayservice-store")``: a node's wheel or RocksDB store as a DataFrame.

::

    spark.dataSource.register(StoreSource)
    spark.read.format("delayservice-store").load("/var/lib/delayservice/n1")

It reads a disk, a backup of one, or the disk of a running node: nothing is locked or written
(``delayservice.store.offline``). ``stored.SCHEMA`` has the columns. Options, whose names may be in
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
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from connectors.spark.reconcile.stored import SCHEMA, ShardName
from delayservice.base.errors import StoreDamagedError, StoreError
from delayservice.contract.times import DUE_STOP_MS
from delayservice.replicas.digest_rows import Damage
from delayservice.store.folder import shard_name
from delayservice.store.offline import HOUR_MS, ReadBounds, find_stores, open_view, read
from delayservice.store.wheel import Wheel

FORMAT: Final = "delayservice-store"

# Number of RocksDB shards that one task reads, as opening their common database takes time.
_SHARDS_PER_TASK: Final = 16


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the data source, as this module describes them."""

    path: str
    mode: Literal["permissive", "failfast"] = "permissive"
    from_ms: int = 0
    to_ms: int = DUE_STOP_MS
    topics: Mapping[str, str] | None = None
    partitions: tuple[int, ...] | None = None
    content: bool = True
    hours_per_task: Annotated[int, msgspec.Meta(ge=1)] = 1

    @classmethod
    def of(cls, options: Mapping[str, str]) -> StoreOptions:
        given: dict[str, Any] = {n: options[n] for n in cls.__struct_fields__ if n in options}
        given["mode"] = given.get("mode", "permissive").lower()
        try:
            for name in {"topics", "partitions"} & given.keys():
                given[name] = msgspec.json.decode(given[name])
            return msgspec.convert(given, cls, strict=False)
        except msgspec.MsgspecError as exc:
            raise StoreError(
                f'{FORMAT} needs a folder, load("…"), and mode permissive or failfast: {exc}'
            ) from exc

    def name_of(self, shard: str, partition: int) -> ShardName | None:
        if self.partitions is not None and partition not in self.partitions:
            return None
        if self.topics is None:
            return ShardName(shard, partition)
        names = {shard_name(topic_id): name for topic_id, name in self.topics.items()}
        return ShardName(shard, partition, names[shard]) if shard in names else None


def read_store(spark: SparkSession, path: str, **options: object) -> DataFrame:
    """Return the records in a node's stores or in one worker's, columns ``stored.SCHEMA``."""
    spark.dataSource.register(StoreSource)
    texts = {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in options.items()
    }
    return spark.read.format(FORMAT).options(**texts).load(path)


class StoreSource(DataSource):
    """Spark data source that registers the format ``delayservice-store``."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return from_arrow_schema(SCHEMA)

    def reader(self, schema: StructType) -> StoreReader:
        del schema
        return StoreReader(StoreOptions.of(self.options))


@dataclass
class Part(InputPartition):
    """Some shards of a store, in a range of key times; ``why``: reason why a node would start the
    store over, which becomes one row of damage.
    """

    path: str
    shards: tuple[ShardName, ...]
    bounds: ReadBounds
    why: str = ""


@dataclass
class StoreReader(DataSourceReader):
    options: StoreOptions

    def partitions(self) -> list[InputPartition]:
        # Only the state of each store is read here, no records.
        folders = find_stores(Path(self.options.path))
        return [part for folder in folders for part in self._parts(folder)]

    def _parts(self, folder: Path) -> Iterator[InputPartition]:
        path, bounds = str(folder), ReadBounds(self.options.from_ms, self.options.to_ms)
        try:
            with open_view(folder) as shards:
                named = [self.options.name_of(*name) for name in sorted(shards.shards)]
                chosen = tuple(name for name in named if name is not None)
                if isinstance(shards, Wheel):
                    for hours in self._hours(shards, bounds):
                        yield Part(path, chosen, hours)
                    return
        except StoreDamagedError as exc:
            yield Part(path, (), bounds, str(exc))
            return
        for at in range(0, len(chosen), _SHARDS_PER_TASK):
            yield Part(path, chosen[at : at + _SHARDS_PER_TASK], bounds)

    def _hours(self, wheel: Wheel, asked: ReadBounds) -> Iterator[ReadBounds]:
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

    def read(self, part: Part | None) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        if part is None:  # what PySpark asks for where there are no parts
            return
        if part.why:
            yield self._damaged(ShardName("", -1), _whole(part.why))
            return
        # If reading fails, each shard that is not complete by then gets a row of damage.
        left = list(part.shards)
        try:
            with open_view(Path(part.path)) as shards:
                slot_ms = shards.slots.slot_ms if isinstance(shards, Wheel) else HOUR_MS
                while left:
                    store = shards.store(left[0].shard, left[0].partition)
                    store.open()
                    for found in read(store, part.bounds):
                        if isinstance(found, Damage):
                            yield self._damaged(left[0], found)
                        else:
                            yield left[0].batch(found, slot_ms, content=self.options.content)
                    left.pop(0)
        except StoreDamagedError as exc:
            for name in left:
                yield self._damaged(name, _whole(str(exc)))

    def _damaged(self, name: ShardName, damage: Damage) -> pa.RecordBatch:
        if self.options.mode == "failfast":
            raise StoreError(
                f"shard {name.shard}/{name.partition} is damaged: {damage.why}; read it in mode "
                "permissive to see the rest, and repair it"
            )
        return name.damage_batch(damage)


def _whole(why: str) -> Damage:
    return Damage(0, DUE_STOP_MS, 0, None, why)
