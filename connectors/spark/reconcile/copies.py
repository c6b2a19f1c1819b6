"""Reads the nodes' copies: from their digests (``Live``), or from their disks (``OnDisk``)."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Mapping
from functools import reduce
from pathlib import Path
from typing import Final, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors.kafka.clients import admin_client
from connectors.kafka.copies import RepairClient
from connectors.kafka.log_ends import LATEST, newest_time_ms, offsets_of
from connectors.spark.common.cut import Cut, ShardCut
from connectors.spark.common.frames import arrow_schema, kept
from connectors.spark.common.topics import Place, Span, native_options, read_topic
from connectors.spark.reconcile import digest_rows, digests
from connectors.spark.reconcile.compare import (
    COPY,
    HELD,
    HOUR,
    PLACE,
    SHARD,
    TOLD,
    UNREADABLE,
    with_hour,
)
from connectors.spark.reconcile.digest_rows import from_hex
from connectors.spark.reconcile.digests import Comparison, CutAt, Expected, Served, silent
from connectors.spark.reconcile.options import ReconcileOptions
from connectors.spark.reconcile.store_source import StoreOptions, reach_of, read_store
from delayservice.base.errors import DelayServiceError
from delayservice.engine.cursor import Cursor
from delayservice.replicas.commands import ROWS_MAX, Command, Report
from delayservice.replicas.digest import HOUR_MS
from delayservice.store.folder import shard_name
from delayservice.store.offline import ReadBounds

HOURS_MAX: Final = 10_000
"""Largest number of hours of copies whose records nodes are asked for."""
ASKED_AT_ONCE: Final = 64

_FOUND: Final = (
    "node string, topic string, partition int, key_ms bigint, offset bigint, mark bigint, "
    "payload_hash bigint, damage string, slot_start_ms bigint, slot_stop_ms bigint"
)
# Number of hours of due times that one task reads: a task costs some milliseconds, and most hours
# are small.
_HOURS_PER_TASK: Final = 24
# Number of reports of nodes that one task reads; each holds up to ``ROWS_MAX`` records.
_TASK_REPORTS: Final = 20
_REPORT: Final = "kind string, node string, topic string, partition int, rows array<array<string>>"


class Replicas(Protocol):
    """Copies to compare.

    Attributes:
        compared: what is compared of each shard.
        hours: number of hours in the sums that were read, counted for each copy.
        hashed: column with the hash of a record that ``sums`` adds up: ``payload_hash``, or
            ``frame_hash``, which covers the id instead of the payload where there is an id.
    """

    compared: list[Comparison]
    hours: int
    hashed: str

    def damaged(self) -> DataFrame:
        """Return ranges of copies that can't be read, columns ``UNREADABLE``."""

    def sums(self) -> DataFrame:
        """Return count and hash of each copy's hours, columns ``digest_rows.SUMS``."""

    def records(self, hours: DataFrame) -> tuple[DataFrame, DataFrame]:
        """Read the records of ``hours`` (columns ``compare.PLACE``) in their order.

        Returns:
            Records that are pending at their shard's cursor, with the columns of ``compare.HELD``;
            and which hours they are of, columns ``compare.TOLD``.
        """

    def look_again(self) -> None:
        """Compare copies that were behind for lack of a newer report and have sent one since."""

    def close(self) -> None: ...


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


def _held(pending: DataFrame) -> DataFrame:
    return pending.where("is_compared").select(*arrow_schema(HELD).names)


def copies_of(spark: SparkSession, compared: Iterable[Comparison]) -> DataFrame:
    rows = [(node, *one.place) for one in compared for node in one.nodes]
    return spark.createDataFrame(rows, "node string, topic string, partition int")


class Live:
    """Copies of running nodes: digests show in which hours copies differ, and nodes tell the
    records of differing hours. Copies whose hour rows do not add up to their cut row are left out.
    ``stop``: ends a wait for nodes, with ``DelayServiceError``.
    """

    hashed = "frame_hash"

    def __init__(
        self, spark: SparkSession, options: ReconcileOptions, cut: Cut, stop: threading.Event
    ) -> None:
        self._spark = spark
        self._options = options
        self._stop = stop
        self._native = native_options(options.client)
        self._admin = admin_client(self._native)
        self._spans = {p: span for p, span in cut.spans.items() if p[0] == options.digests}
        self._rows = self._read(self._spans).persist()
        shards = {p: Served(s.topic_id, s.earlier) for p, s in served(cut).items()}
        checkpoints = range(cut.partitions[options.checkpoint])
        now_ms = newest_time_ms(self._admin, [(options.checkpoint, n) for n in checkpoints])
        cuts = digest_rows.newest_cuts(self._rows)
        self.compared = digests.choose(cuts, shards, options.expected, now_ms)
        self._hours = digest_rows.hours_at(spark, self._rows, self.compared).persist()
        totals = digest_rows.totals(self._hours)
        self.hours = sum(hours for hours, _, _ in totals.values())
        for one in self.compared:
            for node, cut_row in [(at.cut.node, at.cut) for at in one.rows]:
                _, count, hashed = totals.get((node, *one.place), (0, 0, 0))
                if (count, hashed % 2**64) != (cut_row.count, int(cut_row.hash, 16)):
                    one.leave_out(
                        node,
                        f"its rows hold {count} records and its cut {cut_row.count}: newer rows "
                        "have taken the place of some, or some were lost; compare again",
                    )
            one.records = max((at.cut.count for at in one.rows), default=0)

    def _read(self, spans: Mapping[Place, Span]) -> DataFrame:
        options = self._options
        records = read_topic(self._spark, options.client, spans, options.min_partitions)
        return digest_rows.parse_keys(records)

    def damaged(self) -> DataFrame:
        found = [
            (node, *one.place, damage.start_ms, damage.stop_ms, damage.why)
            for one in self.compared
            for node, damages in one.damaged.items()
            for damage in damages
        ]
        return self._spark.createDataFrame(found, UNREADABLE)

    def sums(self) -> DataFrame:
        starts = [(node, *one.place, one.from_ms) for one in self.compared for node in one.nodes]
        columns = "node string, topic string, partition int, from_ms bigint"
        compared = sf.broadcast(self._spark.createDataFrame(starts, columns))
        return (
            self._hours.join(compared, COPY).where(f"hour_ms + {HOUR_MS} > from_ms").drop("from_ms")
        )

    def look_again(self) -> None:
        stale = {(n, *one.place): cut for one in self.compared for n, cut in one.stale.items()}
        if not stale:
            return
        ends = offsets_of(self._admin, self._spans.keys(), LATEST)
        later = {place: Span(span.end, ends[place]) for place, span in self._spans.items()}
        newer = digest_rows.newest_cuts(self._read(later))
        cuts = [at for at in newer if isinstance(at, CutAt)]
        reported = {at.copy for at in cuts if at.cut.cut > stale.get(at.copy, at.cut.cut)}
        for one in self.compared:
            for node in [node for node in one.stale if (node, *one.place) in reported]:
                del one.behind[node]

    def close(self) -> None:
        self._hours.unpersist()
        self._rows.unpersist()

    def records(self, hours: DataFrame) -> tuple[DataFrame, DataFrame]:
        asked = hours.limit(HOURS_MAX).collect() if self._options.details else []
        plan, start, told = uuid.uuid4().hex, self._end(), []
        timeout_s = self._options.answer_timeout_s
        desk = RepairClient(self._native, self._options.repairs, self._stop)
        for first in range(0, len(asked), ASKED_AT_ONCE):
            some = dict(enumerate(asked[first : first + ASKED_AT_ONCE], first))
            requests = [
                Command(plan=plan, step=step, command="records", **row.asDict())
                for step, row in some.items()
            ]
            reports = {one.step: _told(one) for one in desk.ask(requests, timeout_s)}
            if self._stop.is_set():
                raise DelayServiceError("stopped while nodes were asked for their records")
            for step, row in some.items():
                stop_ms, why = reports.get(step, (0, "the node did not answer"))
                told.append((*row, row["hour_ms"] + HOUR_MS if stop_ms is None else stop_ms, why))
        rows = self._rows_of(plan, start, self._end())
        held = _held(pending_rows(self._spark, rows, self.compared))
        return held, self._spark.createDataFrame(told, TOLD)

    def _rows_of(self, plan: str, start: int, stop: int) -> DataFrame:
        spans = {(self._options.repairs, 0): Span(start, stop)}
        tasks = (stop - start) // _TASK_REPORTS + 1
        records = read_topic(self._spark, self._options.client, spans, tasks)
        row = sf.col("row")
        return (
            records.where(sf.col("key").cast("string") == plan)
            .select(sf.from_json(sf.col("value").cast("string"), _REPORT).alias("said"))
            .select("said.*")
            .where("kind = 'report'")
            .select(*COPY, sf.explode("rows").alias("row"))
            .select(
                *COPY,
                row[0].cast("bigint").alias("key_ms"),
                row[1].cast("bigint").alias("offset"),
                row[2].cast("bigint").alias("mark"),
                from_hex(row[3]).alias("payload_hash"),
            )
        )

    def _end(self) -> int:
        place = (self._options.repairs, 0)
        return offsets_of(self._admin, [place], LATEST)[place]


def _told(report: Report) -> tuple[int | None, str | None]:
    # Exclusive end of the key times that a report covers (None: the whole hour, 0: none of it), and
    # why it does not cover the hour. Records of the last key time may be missing.
    if report.status == "failed":
        return 0, report.detail
    if not report.has_more:
        return None, None
    return report.rows[-1][0], f"the node told the first {ROWS_MAX:,} of the hour, which are right"


class OnDisk:
    """Copies read from folders: of stopped nodes, of backups, or beside running nodes. The records
    are written to ``<out>/work/copies``, so that disks are read once.
    """

    hashed = "payload_hash"
    hours = 0

    def __init__(self, spark: SparkSession, options: ReconcileOptions, cut: Cut) -> None:
        self._spark = spark
        self._options = options
        self._shards = served(cut)
        reach = {node: self._reach(path) for node, path in sorted(options.folders.items())}
        self.compared = [self._compare(place, reach) for place in sorted(self._shards)]
        self._found = kept(self._read(), options.path("work/copies"))
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
        expected, least = self._options.expected, self._options.behind_records
        if not expected.replicas:
            expected = Expected(nodes=tuple(sorted(self._options.folders)))
        cursor = self._shards[place].later
        held = {node: found[place] for node, found in reach.items() if place in found}
        one = Comparison(*place, silent=silent(held.keys(), expected), owners={*held})
        stored = {node: stop for node, stop in held.items() if stop is not None}
        for node, stop in stored.items():
            if stop < cursor.offset - least:
                one.behind[node] = f"has stored up to {stop} and not to {cursor.offset}"
            else:
                one.nodes.append(node)
        below = min([cursor.offset, *(stored[node] for node in one.nodes)])
        one.cursor = Cursor(cursor.key, below)
        one.from_ms = cursor.key[0] + 1
        return one

    def _read(self) -> DataFrame:
        topics = {shard.topic_id: shard.topic for shard in self._shards.values()}
        from_ms = min([one.cursor.key[0] for one in self.compared], default=0)
        asked = StoreOptions(
            bounds=ReadBounds(from_ms), topics=topics, content=False, hours_per_task=_HOURS_PER_TASK
        )
        read = [
            read_store(self._spark, path, asked).withColumn("node", sf.lit(node))
            for node, path in sorted(self._options.folders.items())
        ]
        return reduce(DataFrame.unionByName, read).select(*arrow_schema(_FOUND).names)

    def damaged(self) -> DataFrame:
        found = self._found.where("damage is not null")
        bounds = ["slot_start_ms as start_ms", "slot_stop_ms as stop_ms", "damage as why"]
        return found.selectExpr(*COPY, *bounds)

    def sums(self) -> DataFrame:
        total = digest_rows.sum64(sf.col(self.hashed)).alias("hash")
        records = self._pending().where("is_compared").transform(with_hour)
        return records.groupBy("node", *HOUR).agg(sf.count("*").alias("count"), total)

    def records(self, hours: DataFrame) -> tuple[DataFrame, DataFrame]:
        whole = (sf.col("hour_ms") + HOUR_MS).alias("stop_ms")
        told = hours.select(*PLACE, whole, sf.lit(None).cast("string").alias("why"))
        return _held(self._pending()), told

    def look_again(self) -> None: ...
    def close(self) -> None: ...
    def _pending(self) -> DataFrame:
        whole = sf.broadcast(copies_of(self._spark, self.compared))
        rows = self._found.where("key_ms is not null").join(whole, COPY)
        return pending_rows(self._spark, rows, self.compared)
