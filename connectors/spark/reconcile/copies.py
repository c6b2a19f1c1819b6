"""Reads the nodes' copies: from their digests (``Live``), or from their disks (``OnDisk``)."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Mapping
from functools import reduce
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors.kafka.copies import RepairClient
from connectors.kafka.log_ends import LATEST, newest_time_ms, offsets_of
from connectors.spark.common.clients import admin_of
from connectors.spark.common.cut import Cut, ShardCut
from connectors.spark.common.frames import kept
from connectors.spark.common.topics import Place, Span, native_options, read_topic
from connectors.spark.reconcile import digest_rows, digests
from connectors.spark.reconcile.compare import (
    COPIES,
    COPY,
    COPY_TYPES,
    FINDING,
    HOUR,
    PLACE,
    TOLD,
    as_findings,
    frame_of,
    longs,
    sum64,
    with_hour,
)
from connectors.spark.reconcile.digests import Comparison, Expected, silent
from connectors.spark.reconcile.options import ReconcileOptions
from connectors.spark.reconcile.repair_plan import Copy
from connectors.spark.reconcile.store_source import read_store
from delayservice.base.errors import DelayServiceError, StoreError
from delayservice.engine.cursor import Cursor
from delayservice.replicas.commands import ROWS_MAX, Command, Report
from delayservice.replicas.digest import HOUR_MS
from delayservice.store.folder import shard_name
from delayservice.store.offline import each_store

HOURS_MAX: Final = 10_000
"""Largest number of hours of copies whose records nodes are asked for."""
ASKED_AT_ONCE: Final = 64

# Columns of a damaged range of a store, and those of the finding about it.
_DAMAGED: Final = {"slot_start_ms": "start_ms", "slot_stop_ms": "stop_ms", "damage": "detail"}
# Number of hours of due times that one task reads: a task costs some milliseconds, and most hours
# are small.
_HOURS_PER_TASK: Final = 24
_RECORDS: Final = pa.schema(
    {**COPY_TYPES, **longs("key_ms", "offset", "mark"), "payload_hash": pa.string()}
)


class Replicas(Protocol):
    """Copies to compare.

    Attributes:
        compared: what is compared of each shard.
        copies: the same of each copy, columns ``compare.COPIES``.
        sums: count and hash of each copy's hours, columns ``compare.SUMS``.
        hashed: column with the hash of a record that ``sums`` adds up: ``payload_hash``, or
            ``frame_hash``, which covers the id instead of the payload where there is an id.
        damaged: findings about ranges of copies that can't be read, columns ``compare.FINDING``.
    """

    compared: list[Comparison]
    copies: DataFrame
    sums: DataFrame
    hashed: str
    damaged: DataFrame

    def records(self, hours: DataFrame) -> tuple[DataFrame, DataFrame]:
        """Read the records of ``hours`` (columns ``compare.PLACE``) in their order.

        Returns:
            Records that are pending at their shard's cursor, as ``compare`` takes them, with
            ``hour_ms``; and which hours they are of, columns ``compare.TOLD``.
        """

    def look_again(self) -> None:
        """Compare copies that were behind for lack of a newer report and have sent one since."""


def served(cut: Cut) -> dict[Place, ShardCut]:
    # Nodes keep copies of all shards but those of level topics.
    return {
        shard.place: shard
        for shard in cut.shards
        if shard.contracts.at(shard.later.offset).level_ms == 0
    }


def _copies_of(spark: SparkSession, compared: Iterable[Comparison]) -> DataFrame:
    rows = [
        (node, *one.place, one.cursor.offset, *one.cursor.key, one.from_ms)
        for one in compared
        for node in one.nodes
    ]
    return frame_of(spark, rows, COPIES)


def _held(rows: DataFrame, copies: DataFrame) -> DataFrame:
    # The rows that are pending at the cursor of their copy, and are compared.
    is_above = "key_ms > k_ms or (key_ms = k_ms and offset > k_offset)"
    is_unmarked = "mark is null or mark < 0 or mark >= below"
    return (
        rows.join(sf.broadcast(copies), COPY)
        .where(f"key_ms >= from_ms and offset < below and ({is_above}) and ({is_unmarked})")
        .drop(*[name for name in COPIES.names if name not in COPY])
        .transform(with_hour)
    )


def _totals(sums: DataFrame) -> dict[Copy, tuple[int, int]]:
    # By copy the number of its records, and the signed sum of their hashes.
    total = sums.groupBy(*COPY).agg(sf.sum("count"), sum64(sf.col("hash")))
    return {tuple(row[:3]): tuple(row[3:]) for row in total.collect()}


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
        self._admin = admin_of(options.client)
        self._spans = {p: span for p, span in cut.spans.items() if p[0] == options.digests}
        rows = self._read(self._spans)
        checkpoints = range(cut.partitions[options.checkpoint])
        now_ms = newest_time_ms(self._admin, [(options.checkpoint, n) for n in checkpoints])
        cuts = digest_rows.newest_cuts(rows)
        self.compared = digests.choose(cuts, served(cut), options.expected, now_ms)
        hours = kept(digest_rows.hours_at(rows, self.compared), options.path("work/hours"))
        self._check(_totals(hours))
        self.copies = _copies_of(spark, self.compared)
        starts = sf.broadcast(self.copies.select(*COPY, "from_ms"))
        is_compared = f"hour_ms + {HOUR_MS} > from_ms"
        self.sums = hours.join(starts, COPY).where(is_compared).drop("from_ms")
        found = [
            ("damaged", node, *one.place, damage.start_ms, damage.stop_ms, None, None, damage.why)
            for one in self.compared
            for node, damages in one.damaged.items()
            for damage in damages
        ]
        self.damaged = frame_of(spark, found, FINDING)

    def _read(self, spans: Mapping[Place, Span]) -> DataFrame:
        options = self._options
        records = read_topic(self._spark, options.client, spans, options.min_partitions)
        return digest_rows.parse_keys(records)

    def _check(self, totals: Mapping[Copy, tuple[int, int]]) -> None:
        for one in self.compared:
            for node, at in [*one.nodes.items()]:
                count, hashed = totals.get((node, *one.place), (0, 0))
                if at is None or (count, hashed % 2**64) == (at.cut.count, int(at.cut.hash, 16)):
                    one.records = max(one.records, count)
                    continue
                del one.nodes[node]
                one.behind[node] = (
                    f"its rows hold {count} records and its cut {at.cut.count}: newer rows have "
                    "taken the place of some, or some were lost; compare again"
                )

    def look_again(self) -> None:
        stale = {one.place: one for one in self.compared if one.stale}
        if not stale:
            return
        ends = offsets_of(self._admin, self._spans.keys(), LATEST)
        later = {place: Span(span.end, ends[place]) for place, span in self._spans.items()}
        for at in digest_rows.newest_cuts(self._read(later)):
            one = stale.get((at.cut.topic, at.cut.partition))
            if one is not None and at.cut.cut > one.stale.get(at.cut.node, at.cut.cut):
                one.behind.pop(at.cut.node, None)

    def records(self, hours: DataFrame) -> tuple[DataFrame, DataFrame]:
        options, spark = self._options, self._spark
        asked = hours.limit(HOURS_MAX).collect() if options.details else []
        plan, told, path = uuid.uuid4().hex, [], options.path("work/told")
        nodes = RepairClient(native_options(options.client), options.repairs, self._stop)
        records = kept(frame_of(spark, [], _RECORDS), path)
        for first in range(0, len(asked), ASKED_AT_ONCE):
            some = dict(enumerate(asked[first : first + ASKED_AT_ONCE], first))
            requests = [
                Command(plan=plan, step=step, command="records", **row.asDict())
                for step, row in some.items()
            ]
            reports = {one.step: one for one in nodes.ask(requests, options.answer_timeout_s)}
            if self._stop.is_set():
                raise DelayServiceError("stopped while nodes were asked for their records")
            told += [(*hour, *_told(hour[3], reports.get(step))) for step, hour in some.items()]
            rows = (
                (*some[step][:3], *row) for step, report in reports.items() for row in report.rows
            )
            frame_of(spark, rows, _RECORDS).write.mode("append").parquet(path)
        records = spark.read.schema(records.schema).parquet(path)
        records = records.withColumn("payload_hash", digest_rows.from_hex("payload_hash"))
        return _held(records, self.copies), frame_of(spark, told, TOLD)


def _told(hour_ms: int, report: Report | None) -> tuple[int, str | None]:
    # Exclusive end of the key times that a report covers, and why it does not cover the hour.
    # Records of the last key time may be missing.
    if report is None:
        return 0, "the node did not answer"
    if report.status == "failed":
        return 0, report.detail
    if report.has_more:
        why = f"the node told the first {ROWS_MAX:,} of the hour, which are right"
        return report.rows[-1][0], why
    return hour_ms + HOUR_MS, None


class OnDisk:
    """Copies read from folders: of stopped nodes, of backups, or beside running nodes. The records
    are written to ``<out>/work/copies``, so that disks are read once.
    """

    hashed = "payload_hash"

    def __init__(self, spark: SparkSession, options: ReconcileOptions, cut: Cut) -> None:
        self._options = options
        self._shards = served(cut)
        reach = {node: self._reach(path) for node, path in sorted(options.folders.items())}
        self.compared = [self._compare(place, reach) for place in sorted(self._shards)]
        self.copies = _copies_of(spark, self.compared)
        found = kept(self._read(spark), options.path("work/copies"))
        damaged = found.where("damage is not null").withColumn("kind", sf.lit("damaged"))
        self.damaged = as_findings(damaged.withColumnsRenamed(_DAMAGED))
        self._held = _held(found.drop(*_DAMAGED).where("key_ms is not null"), self.copies)
        total = sum64(sf.col(self.hashed)).alias("hash")
        sums = self._held.groupBy("node", *HOUR).agg(sf.count("*").alias("count"), total)
        self.sums = kept(sums, options.path("work/hours"))
        totals = _totals(self.sums)
        for one in self.compared:
            counts = (totals.get((node, *one.place), (0, 0))[0] for node in one.nodes)
            one.pending = one.records = max(counts, default=0)

    def _reach(self, path: str) -> dict[Place, int | None]:
        # S: the next offset to be stored; None: the state of the copy can't be read.
        by_name = {shard_name(shard.topic_id): shard.topic for shard in self._shards.values()}
        return {
            (by_name[folder.shard], folder.partition): (
                None if isinstance(store, StoreError) else store.stop_offset
            )
            for folder, store in each_store(Path(path))
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
                one.nodes[node] = None
        below = min([cursor.offset, *(stored[node] for node in one.nodes)])
        one.cursor = Cursor(cursor.key, below)
        one.from_ms = cursor.key[0] + 1
        return one

    def _read(self, spark: SparkSession) -> DataFrame:
        asked = {
            "from_ms": min([one.cursor.key[0] for one in self.compared], default=0),
            "topics": {shard.topic_id: shard.topic for shard in self._shards.values()},
            "content": False,
            "hours_per_task": _HOURS_PER_TASK,
        }
        read = [
            read_store(spark, path, **asked).withColumn("node", sf.lit(node))
            for node, path in sorted(self._options.folders.items())
        ]
        columns = [*COPY, "key_ms", "offset", "mark", "payload_hash", *_DAMAGED]
        return reduce(DataFrame.unionByName, read).select(*columns)

    def records(self, hours: DataFrame) -> tuple[DataFrame, DataFrame]:
        whole = (sf.col("hour_ms") + HOUR_MS).alias("stop_ms")
        return self._held, hours.select(*PLACE, whole, sf.lit(None).cast("string").alias("why"))

    def look_again(self) -> None: ...
