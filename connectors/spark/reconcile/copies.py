"""Where the copies of the nodes are looked at: by their digests, or on their disks.

Both say what is compared and at which cursor, sum up slots as ``digests.SUMS``, and give the single
records of slots that are wrong.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors.spark.common.cut import Cut, ShardCut
from connectors.spark.common.topics import Place
from connectors.spark.reconcile import digests
from connectors.spark.reconcile.digests import Comparison, Expected, silent
from connectors.spark.reconcile.plan import STEPS_AT_ONCE, Desk
from connectors.spark.reconcile.stored import signed
from connectors.spark.reconcile.wheel_source import WheelOptions, read_wheel, shard_name
from delayservice.core.cursor import Cursor
from delayservice.core.digest import SLOT_MS
from delayservice.core.repair import Command, Detail
from delayservice.store.shards import find_shards
from delayservice.store.wheel.reading import Bounds, load_state

UNREADABLE: Final = (
    "node string, topic string, partition int, slot_start_ms bigint, slot_stop_ms bigint, "
    "first_offset bigint, stop_offset bigint, why string"
)
"""A range that a copy does not give: damaged, or not answered. Offsets null: unknown."""

_ARROW_ROWS: Final = pa.schema(
    [
        ("node", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key_ms", pa.int64()),
        ("offset", pa.int64()),
        ("mark", pa.int64()),
        ("payload_hash", pa.int64()),
    ]
)
_MARKED_ROWS: Final = (
    "node string, topic string, partition int, key_ms bigint, offset bigint, mark bigint, "
    "payload_hash bigint"
)
_FOUND: Final = (
    f"{_MARKED_ROWS}, damage string, slot_start_ms bigint, slot_stop_ms bigint, "
    "first_offset bigint, stop_offset bigint"
)
"""What is kept of a disk."""

_COPY: Final = ("node", "topic", "partition")
_CHUNK_ROWS: Final = 200_000
RANGES_MAX: Final = 10_000
"""Nodes are asked about so many ranges in one comparison; a plan has no more steps either."""
_HOURS_PER_TASK: Final = 24
"""A task costs some milliseconds, and most hours are small."""


class Range(NamedTuple):
    """Slots of one copy that follow each other."""

    node: str
    topic: str
    partition: int
    start_ms: int
    stop_ms: int


class Replicas(Protocol):
    """The copies of all nodes.

    Attributes:
        compared: what is compared.
        slots: rows of digests that were read.
        hashed: which hash of a record is summed up in a slot.
    """

    compared: list[Comparison]
    slots: int
    hashed: str

    def damaged(self) -> DataFrame:
        """``UNREADABLE``: what nodes could not read of their copies."""

    def sums(self, *, every: bool) -> DataFrame:
        """``digests.SUMS`` of all copies that are compared: of every slot, or of those that may
        differ from copy to copy.
        """

    def records(self, ranges: DataFrame) -> tuple[DataFrame, DataFrame]:
        """``node, topic, partition, key_ms, offset, payload_hash`` of what is pending in some
        slots, or in more; and ``UNREADABLE`` where there is no answer.

        Args:
            ranges: rows as ``Range``, in a total order.
        """

    def close(self) -> None:
        """Let go of what Spark keeps of them."""


def served(cut: Cut) -> dict[Place, ShardCut]:
    """The shards that nodes keep copies of: not those of level topics."""
    return {
        (shard.topic, shard.partition): shard
        for shard in cut.shards
        if shard.contracts.at(shard.later.offset).level_ms == 0
    }


def pending_rows(spark: SparkSession, rows: DataFrame, compared: Iterable[Comparison]) -> DataFrame:
    """Return those of ``rows`` that are pending at the cursor of their shard, in slots that are
    compared. ``mark`` is null or negative where there is none.
    """
    cursors = [(*one.place, one.cursor.offset, one.from_ms) for one in compared]
    bounds = spark.createDataFrame(
        cursors, "topic string, partition int, below bigint, from_ms bigint"
    )
    return rows.join(sf.broadcast(bounds), ["topic", "partition"]).where(
        "offset < below and key_ms >= from_ms and (mark is null or mark < 0 or mark >= below)"
    )


# --- by digests ----------------------------------------------------------------------------------


@dataclass
class Live:
    """Copies of running nodes: digests tell where they differ, nodes give the details.

    Attributes:
        spark: the session.
        rows: the digest topic, by ``digests.parse_keys``, persisted.
        compared: what is compared.
        desk: asks the nodes; None: there are no details.
        work: folder for what nodes answer.
        timeout_s: how long to wait for answers.
    """

    spark: SparkSession
    rows: DataFrame
    compared: list[Comparison]
    desk: Desk | None
    work: str
    timeout_s: float
    slots: int = field(init=False, default=0)
    """Digest rows that were read: one for each slot of a copy."""
    hashed: str = field(init=False, default="frame_hash")

    def __post_init__(self) -> None:
        """Read the hours once, and leave out copies whose rows don't make up their cut."""
        self._hours = digests.hours_at(self.spark, self.rows, self.compared)
        self._summed = digests.hour_sums(digests.parse_hours(self._hours)).persist()
        totals = digests.totals(self._summed)
        self.slots = sum(slots for slots, _, _ in totals.values())
        for one in self.compared:
            for row in list(one.rows):
                found = totals.get(row.copy, (0, 0, 0))[1:]
                if found != (row.count, row.hash):
                    one.leave_out(
                        row.node,
                        f"its rows hold {found[0]} records and its cut {row.count}: newer rows "
                        "have taken the place of some, or some were lost; compare again",
                    )

    def damaged(self) -> DataFrame:
        """See ``Replicas``: what the nodes found when they last read their disks."""
        found = [
            (node, *one.place, *damage[:5])
            for one in self.compared
            for node, damages in one.damaged.items()
            for damage in damages
        ]
        return self.spark.createDataFrame(found, UNREADABLE)

    def sums(self, *, every: bool) -> DataFrame:
        """See ``Replicas``: hours that are the same everywhere are not taken apart."""
        hours = self._hours
        if not every:
            differing = digests.differing_hours(self.spark, self._summed, self.compared)
            hour = ["topic", "partition", "hour_ms"]
            hours = hours.join(sf.broadcast(differing), hour, "left_semi")
        nodes = [(node, *one.place) for one in self.compared for node in one.nodes]
        kept = self.spark.createDataFrame(nodes, "node string, topic string, partition int")
        return digests.slot_sums(digests.parse_hours(hours)).join(sf.broadcast(kept), list(_COPY))

    def close(self) -> None:
        """See ``Replicas``."""
        self._summed.unpersist()
        self.rows.unpersist()

    def records(self, ranges: DataFrame) -> tuple[DataFrame, DataFrame]:
        """See ``Replicas``: asks the nodes, and writes down what they answer."""
        asked_max = 0 if self.desk is None else RANGES_MAX
        spool = _Spool(self.spark, self.work)
        silent: list[tuple[Range, str]] = []
        if self.desk is not None:
            asked = [Range(*row) for row in ranges.limit(asked_max).collect()]
            for start in range(0, len(asked), STEPS_AT_ONCE):
                silent += self._ask(self.desk, asked[start : start + STEPS_AT_ONCE], spool)
        told = spool.close()
        unanswered = [(*one, None, None, why) for one, why in silent]
        return (
            pending_rows(self.spark, told, self.compared),
            self.spark.createDataFrame(unanswered, UNREADABLE).union(_not_asked(ranges, asked_max)),
        )

    def _ask(self, desk: Desk, ranges: Sequence[Range], spool: _Spool) -> list[tuple[Range, str]]:
        """Have some ranges told; those that were not, and why."""
        waiting = dict(enumerate(ranges))
        silent: list[tuple[Range, str]] = []
        for answer in desk.ask(self._commands(ranges), self.timeout_s):
            if isinstance(answer, Detail):
                spool.take(answer)
                continue
            one = waiting.pop(answer.step)
            if answer.status != "done":
                silent.append((one, answer.detail))
        return silent + [(one, "the node did not answer") for one in waiting.values()]

    def _commands(self, ranges: Sequence[Range]) -> list[Command]:
        plan = uuid.uuid4().hex
        expires_ms = int((time.time() + self.timeout_s) * 1_000)
        return [
            Command(plan=plan, step=step, command="detail", expires_ms=expires_ms, **one._asdict())
            for step, one in enumerate(ranges)
        ]


def _not_asked(ranges: DataFrame, asked: int) -> DataFrame:
    """``UNREADABLE``: all ranges but the first ``asked``."""
    unknown = sf.lit(None).cast("bigint")
    why = sf.lit("the node was not asked for details")
    return ranges.offset(asked).select(*_COPY, "start_ms", "stop_ms", unknown, unknown, why)


class _Spool:
    """Collects what nodes answer. Spark writes it away in chunks, so that memory stays bounded."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path
        self._rows: list[tuple[object, ...]] = []
        self._mode = "overwrite"

    def take(self, answer: Detail) -> None:
        """Some rows of one copy."""
        copy = (answer.node, answer.topic, answer.partition)
        self._rows += [
            (*copy, key_ms, offset, mark, signed(int(digits, 16)))
            for key_ms, offset, mark, digits in answer.rows
        ]
        if len(self._rows) >= _CHUNK_ROWS:
            self._flush()

    def close(self) -> DataFrame:
        """All that came, as ``ROWS`` with ``mark``."""
        self._flush()
        return self._spark.read.schema(_MARKED_ROWS).parquet(self._path)

    def _flush(self) -> None:
        columns = list(zip(*self._rows, strict=True)) or [()] * len(_ARROW_ROWS)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, _ARROW_ROWS, strict=True)]
        table = pa.Table.from_arrays(arrays, schema=_ARROW_ROWS)
        self._spark.createDataFrame(table).write.mode(self._mode).parquet(self._path)
        self._rows, self._mode = [], "append"


# --- on their disks ------------------------------------------------------------------------------


@dataclass
class OnDisk:
    """Copies in folders: of nodes that are stopped, of backups, or beside running nodes.

    Attributes:
        spark: the session.
        folders: a node's state folder, or its wheel, by the node's name.
        cut: the cursors to compare at.
        expected: which copies should be there.
        behind_records: a copy that lacks more records than this, up to H, is behind.
        work: folder for what is read, so that it is read once.
    """

    spark: SparkSession
    folders: Mapping[str, str]
    cut: Cut
    expected: Expected
    behind_records: int
    work: str
    compared: list[Comparison] = field(init=False)
    slots: int = field(init=False, default=0)
    hashed: str = field(init=False, default="payload_hash")
    """All payloads are at hand, so what is in named records counts, too."""

    def __post_init__(self) -> None:
        """Find out how far each copy is, and read all of them."""
        self._shards = served(self.cut)
        reach = {node: self._reach(path) for node, path in sorted(self.folders.items())}
        self.compared = [self._compare(place, reach) for place in sorted(self._shards)]
        self._read().write.mode("overwrite").parquet(self.work)
        self._found = self.spark.read.schema(_FOUND).parquet(self.work)

    def _reach(self, path: str) -> dict[Place, int | None]:
        """S of every copy in a folder; None of one that can't be trusted."""
        by_name = {shard_name(shard.topic_id): shard.topic for shard in self._shards.values()}
        found: dict[Place, int | None] = {}
        for folder in find_shards(Path(path), ("wheel",)):
            if folder.shard in by_name:
                state = load_state(folder)
                place = (by_name[folder.shard], folder.partition)
                found[place] = None if state is None else state.stop_offset
        return found

    def _compare(self, place: Place, reach: Mapping[str, Mapping[Place, int | None]]) -> Comparison:
        cursor = self._shards[place].later
        kept = {node: found[place] for node, found in reach.items() if place in found}
        one = Comparison(*place, silent=silent(kept.keys(), self.expected))
        stored = {node: stop for node, stop in kept.items() if stop is not None}
        for node, stop in stored.items():
            if stop < cursor.offset - self.behind_records:
                one.behind[node] = f"has stored up to {stop} and not to {cursor.offset}"
            else:
                one.nodes.append(node)
        below = min([cursor.offset, *(stored[node] for node in one.nodes)])
        one.cursor = Cursor(cursor.key, below)
        one.from_ms = (cursor.key[0] // SLOT_MS + 1) * SLOT_MS
        return one

    def _read(self) -> DataFrame:
        topics = {shard.topic_id: shard.topic for shard in self._shards.values()}
        from_ms = min([one.from_ms for one in self.compared], default=0)
        read = [
            read_wheel(
                self.spark,
                WheelOptions(
                    path,
                    Bounds(from_ms),
                    topics,
                    content=False,
                    hours_per_task=_HOURS_PER_TASK,
                ),
            ).withColumn("node", sf.lit(node))
            for node, path in sorted(self.folders.items())
        ]
        return reduce(DataFrame.unionByName, read).select(*_names(_FOUND))

    def damaged(self) -> DataFrame:
        """See ``Replicas``."""
        return self._found.where("damage is not null").select(
            *_COPY,
            "slot_start_ms",
            "slot_stop_ms",
            "first_offset",
            "stop_offset",
            sf.col("damage").alias("why"),
        )

    def sums(self, *, every: bool) -> DataFrame:
        """See ``Replicas``: every slot in any case."""
        del every
        start = slot_start(sf.col("key_ms"))
        return (
            self._pending()
            .groupBy(*_COPY, start.alias("slot_start_ms"))
            .agg(sf.count("*").alias("count"), digests.sum64(sf.col(self.hashed)).alias("hash"))
            .select(*_names(digests.SUMS))
        )

    def records(self, ranges: DataFrame) -> tuple[DataFrame, DataFrame]:
        """See ``Replicas``: they are all here."""
        del ranges
        return self._pending(), self.spark.createDataFrame([], UNREADABLE)

    def close(self) -> None:
        """See ``Replicas``: what was read is in a folder."""

    def _pending(self) -> DataFrame:
        whole = self.spark.createDataFrame(
            [(node, *one.place) for one in self.compared for node in one.nodes],
            "node string, topic string, partition int",
        )
        rows = self._found.where("key_ms is not null").join(sf.broadcast(whole), list(_COPY))
        return pending_rows(self.spark, rows, self.compared)


def slot_start(key_ms: Column) -> Column:
    """The start of the slot that a key is in."""
    return key_ms - key_ms % SLOT_MS


def _names(ddl: str) -> list[str]:
    return [column.split()[0] for column in ddl.split(",")]
