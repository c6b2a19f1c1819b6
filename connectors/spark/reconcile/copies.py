"""Reads the nodes' copies: from their digests (``Live``), or from their disks (``OnDisk``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Final, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors.kafka.clients import admin_client
from connectors.kafka.log_ends import LATEST, newest_time_ms, offsets_of
from connectors.spark.common.cut import Cut, ShardCut
from connectors.spark.common.frames import arrow_schema, kept
from connectors.spark.common.topics import Place, Span, native_options, read_topic
from connectors.spark.reconcile import digest_rows, digests
from connectors.spark.reconcile.compare import COPY, SHARD, with_slot
from connectors.spark.reconcile.details import UNREADABLE, Details
from connectors.spark.reconcile.digests import Comparison, CutRow, Expected, Served, silent
from connectors.spark.reconcile.store_source import StoreOptions, reach_of, read_store
from delayservice.engine.cursor import Cursor
from delayservice.replicas.digest import SLOT_MS
from delayservice.store.folder import shard_name
from delayservice.store.offline import ReadBounds

_FOUND: Final = (
    "node string, topic string, partition int, key_ms bigint, offset bigint, mark bigint, "
    "payload_hash bigint, damage string, slot_start_ms bigint, slot_stop_ms bigint, "
    "first_offset bigint, stop_offset bigint"
)

# Number of hours of due times that one task reads: a task costs some milliseconds, and most hours
# are small.
_HOURS_PER_TASK: Final = 24


def served(cut: Cut) -> dict[Place, ShardCut]:
    # Nodes keep copies of all shards but those of level topics.
    return {
        (shard.topic, shard.partition): shard
        for shard in cut.shards
        if shard.contracts.at(shard.later.offset).level_ms == 0
    }


def pending_rows(spark: SparkSession, rows: DataFrame, compared: Iterable[Comparison]) -> DataFrame:
    """Return the ``rows`` that are pending at the cursor of their comparison, with
    ``is_compared``.
    """
    cursors = [(*one.place, one.cursor.offset, *one.cursor.key, one.from_ms) for one in compared]
    bounds = spark.createDataFrame(
        cursors,
        "topic string, partition int, below bigint, k_ms bigint, k_offset bigint, from_ms bigint",
    )
    is_above = "key_ms > k_ms or (key_ms = k_ms and offset > k_offset)"
    is_unmarked = "mark is null or mark < 0 or mark >= below"
    return (
        rows.join(sf.broadcast(bounds), SHARD)
        .where(f"offset < below and ({is_above}) and ({is_unmarked})")
        .withColumn("is_compared", sf.expr("key_ms >= from_ms"))
    )


def copies_of(spark: SparkSession, compared: Iterable[Comparison]) -> DataFrame:
    rows = [(node, *one.place) for one in compared for node in one.nodes]
    return spark.createDataFrame(rows, "node string, topic string, partition int")


@dataclass
class Live:
    """Copies of running nodes: digests show in which slots copies differ, and nodes send the
    records of differing slots.

    Attributes:
        topic: name of the digest topic.
        checkpoint: name of the checkpoint topic, whose newest timestamp gives the brokers' time.
        cut: shards to compare, and the end up to which the digest topic is read.
        slots: number of slots in the digest rows that were read, counted for each copy.
        hashed: column with the hash of a record that digests add up: ``frame_hash``, which covers
            the id instead of the payload where there is an id.
    """

    spark: SparkSession
    client: Mapping[str, str]
    topic: str
    checkpoint: str
    cut: Cut
    expected: Expected
    details: Details
    min_partitions: int
    compared: list[Comparison] = field(init=False)
    slots: int = field(init=False, default=0)
    hashed: str = field(init=False, default="frame_hash")

    def __post_init__(self) -> None:
        # The digest topic is read once. Copies whose rows for hours do not add up to the sum in
        # their cut row are left out.
        self._spans = {p: span for p, span in self.cut.spans.items() if p[0] == self.topic}
        self._rows = self._read(self._spans).persist()
        shards = {p: Served(s.topic_id, s.earlier) for p, s in served(self.cut).items()}
        admin = admin_client(native_options(self.client))
        checkpoints = range(self.cut.partitions[self.checkpoint])
        now_ms = newest_time_ms(admin, [(self.checkpoint, number) for number in checkpoints])
        cuts = digest_rows.newest_cuts(self._rows)
        self.compared = digests.choose(cuts, shards, self.expected, now_ms)
        self._hours = digest_rows.hours_at(self.spark, self._rows, self.compared)
        self._summed = digest_rows.hour_sums(self._hours).persist()
        totals = digest_rows.totals(self._summed)
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
            one.records = max((row.count for row in one.rows), default=0)

    def _read(self, spans: Mapping[Place, Span]) -> DataFrame:
        records = read_topic(self.spark, self.client, spans, self.min_partitions)
        return digest_rows.parse_keys(records)

    def damaged(self) -> DataFrame:
        """Return ranges that nodes could not read, columns ``UNREADABLE``."""
        found = [
            (node, *one.place, *damage[:5])
            for one in self.compared
            for node, damages in one.damaged.items()
            for damage in damages
        ]
        return self.spark.createDataFrame(found, UNREADABLE)

    def sums(self, *, every: bool) -> DataFrame:
        """Return count and hash of each copy's slots, columns ``digest_rows.SUMS``; unless
        ``every``, of hours that differ between copies only.
        """
        hours = self._hours
        if not every:
            differing = digest_rows.differing_hours(self.spark, self._summed, self.compared)
            hours = hours.join(sf.broadcast(differing), [*SHARD, "hour_ms"], "left_semi")
        copies = sf.broadcast(copies_of(self.spark, self.compared))
        return digest_rows.slot_sums(hours).join(copies, COPY)

    def look_again(self) -> None:
        """Compare copies that were behind for lack of a newer report and have sent one since."""
        stale = {(n, *one.place): cut for one in self.compared for n, cut in one.stale.items()}
        if not stale:
            return
        ends = offsets_of(admin_client(native_options(self.client)), self._spans.keys(), LATEST)
        later = {place: Span(span.end, ends[place]) for place, span in self._spans.items()}
        newer = digest_rows.newest_cuts(self._read(later))
        cuts = [row for row in newer if isinstance(row, CutRow)]
        reported = {row.copy for row in cuts if row.cut > stale.get(row.copy, row.cut)}
        for one in self.compared:
            for node in [node for node in one.stale if (node, *one.place) in reported]:
                del one.behind[node]

    def close(self) -> None:
        self._summed.unpersist()
        self._rows.unpersist()

    def records(self, ranges: DataFrame) -> tuple[DataFrame, DataFrame]:
        """Ask nodes for the records in some ranges (columns of ``details.Range``, in a total
        order).

        Returns:
            Records that are pending at their shard's cursor, with the columns of ``compare.HELD``;
            and ranges without an answer, with the columns of ``UNREADABLE``.
        """
        told, unanswered = self.details.of(ranges)
        return pending_rows(self.spark, told, self.compared), unanswered


@dataclass
class OnDisk:
    """Copies read from folders: of stopped nodes, of backups, or beside running nodes.

    ``folders``: by name of the node, its state folder or a folder of stores in it;
    ``behind_records``: number of records up to H that a copy may lack before it counts as behind;
    ``work``: folder to which the records are written, so that disks are read once.
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

    def __post_init__(self) -> None:
        self._shards = served(self.cut)
        reach = {node: self._reach(path) for node, path in sorted(self.folders.items())}
        self.compared = [self._compare(place, reach) for place in sorted(self._shards)]
        self._found = kept(self._read(), self.work)
        counts = self._pending().groupBy(*COPY).agg(sf.count("*"), sf.count_if("is_compared"))
        by_place = {one.place: one for one in self.compared}
        for _, topic, partition, pending, records in counts.collect():
            one = by_place[topic, partition]
            one.pending, one.records = max(one.pending, pending), max(one.records, records)

    def _reach(self, path: str) -> dict[Place, int | None]:
        # S: the next offset to be stored; None: the state of the copy can't be read.
        by_name = {shard_name(shard.topic_id): shard.topic for shard in self._shards.values()}
        return {
            (by_name[folder.shard], folder.partition): stop
            for folder, stop in reach_of(Path(path))
            if folder.shard in by_name
        }

    def _compare(self, place: Place, reach: Mapping[str, Mapping[Place, int | None]]) -> Comparison:
        cursor = self._shards[place].later
        held = {node: found[place] for node, found in reach.items() if place in found}
        one = Comparison(*place, silent=silent(held.keys(), self.expected), owners={*held})
        stored = {node: stop for node, stop in held.items() if stop is not None}
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
        from_ms = min([one.cursor.key[0] for one in self.compared], default=0)
        asked = StoreOptions(
            bounds=ReadBounds(from_ms), topics=topics, content=False, hours_per_task=_HOURS_PER_TASK
        )
        read = [
            read_store(self.spark, path, asked).withColumn("node", sf.lit(node))
            for node, path in sorted(self.folders.items())
        ]
        return reduce(DataFrame.unionByName, read).select(*arrow_schema(_FOUND).names)

    def damaged(self) -> DataFrame:
        found = self._found.where("damage is not null").withColumnRenamed("damage", "why")
        return found.select(*arrow_schema(UNREADABLE).names)

    def sums(self, *, every: bool) -> DataFrame:
        del every
        total = digest_rows.sum64(sf.col(self.hashed)).alias("hash")
        return (
            self._compared()
            .transform(with_slot)
            .groupBy(*COPY, "slot_start_ms")
            .agg(sf.count("*").alias("count"), total)
            .select(*arrow_schema(digest_rows.SUMS).names)
        )

    def records(self, ranges: DataFrame) -> tuple[DataFrame, DataFrame]:
        del ranges
        return self._compared(), self.spark.createDataFrame([], UNREADABLE)

    def look_again(self) -> None: ...
    def close(self) -> None: ...
    def _compared(self) -> DataFrame:
        return self._pending().where("is_compared")

    def _pending(self) -> DataFrame:
        whole = sf.broadcast(copies_of(self.spark, self.compared))
        rows = self._found.where("key_ms is not null").join(whole, COPY)
        return pending_rows(self.spark, rows, self.compared)


Replicas: TypeAlias = Live | OnDisk
