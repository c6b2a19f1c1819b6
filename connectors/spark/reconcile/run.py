"""Compares the copies of a cluster with each other, and with the delay topics.

Copies are first compared by sums of hours of due time: one row for each hour instead of one for
each record. Where they differ, the log decides which copy is right: its pending records are summed
up in the same way, and copies with other sums are compared with it record by record. Spark does all
of that; the driver gets counts, bounded samples and the steps of the repair plan.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import closing
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors.kafka.clients import admin_client
from connectors.kafka.copies import cluster_id
from connectors.kafka.log_ends import offsets_since
from connectors.spark.common.cut import Cut, ShardCut, take_cut
from connectors.spark.common.files import delete, write_text
from connectors.spark.common.frames import counts_by, kept
from connectors.spark.common.pending import LogPart, before, sift, uncancelled, written_since_ms
from connectors.spark.common.progress import Say
from connectors.spark.common.sink import name_for, publish
from connectors.spark.common.topics import Place, native_options
from connectors.spark.reconcile.compare import (
    COPY,
    FINDING,
    HOUR,
    KINDS,
    PLACE,
    SHARD,
    compare,
    damage_findings,
    hour_findings,
    outside,
    plan_steps,
    suspects,
    with_hour,
    wrong_hours,
)
from connectors.spark.reconcile.copies import Live, OnDisk, Replicas, copies_of, served
from connectors.spark.reconcile.options import Counts, ReconcileOptions, ReconcileResult
from connectors.spark.reconcile.page import page
from connectors.spark.reconcile.repair_plan import Plan
from connectors.spark.reconcile.stored import HASHES
from delayservice.base.errors import KafkaEdgeError
from delayservice.contract.times import DUE_STOP_MS
from delayservice.replicas.digest import HOUR_MS

SAMPLE_ROWS: Final = 20
# Largest number of findings that one comparison publishes, as the next comparison finds most of
# them again.
PUBLISHED_MAX: Final = 100
_ORDER: Final = ["kind", *COPY, "start_ms", "offset"]


def reconcile(
    spark: SparkSession, options: ReconcileOptions, say: Say = lambda _: None
) -> ReconcileResult:
    """Compare the copies of a cluster; write findings, a summary, a page and a repair plan; return
    the result.

    Raises:
        KafkaEdgeError: the cluster can't be read, or a topic named in the options does not exist.
        StoreError: a folder holds no store, or may not be read.
    """
    result = compare_copies(spark, options, say)
    conclude(spark, options, result)
    return result


def compare_copies(
    spark: SparkSession, options: ReconcileOptions, say: Say, stop: threading.Event | None = None
) -> ReconcileResult:
    """Compare the copies and write findings, page and repair plan, but no summary. If ``stop`` is
    set, waiting for nodes ends with ``DelayServiceError``.
    """
    return _Reconciling(spark, options, say, stop or threading.Event()).run()


def conclude(
    spark: SparkSession,
    options: ReconcileOptions,
    result: ReconcileResult,
    repairs: Mapping[str, object] | None = None,
) -> None:
    summary = {**result.to_json(), **({} if repairs is None else {"repairs": repairs})}
    write_text(result.paths["summary"], json.dumps(summary, indent=2) + "\n")
    if options.topic is not None:
        del summary["shards"]  # there may be thousands, and a record must stay small
        found = spark.read.schema(FINDING).parquet(result.paths["findings"])
        first = found.orderBy(*_ORDER).limit(PUBLISHED_MAX)
        sender = (name_for("reconcile", options.out), None)
        publish(options.client, options.topic, sender, ("copy_finding", first), summary)


class _Reconciling:
    """One comparison of copies; the data between its steps is stored in ``<out>/work``."""

    def __init__(
        self, spark: SparkSession, options: ReconcileOptions, say: Say, stop: threading.Event
    ) -> None:
        self._spark = spark
        self._options = options
        self._say = say
        self._stop = stop
        self._began_s = self._read_s = time.monotonic()
        self._counts = Counts()

    def run(self) -> ReconcileResult:
        self._say("looking at the checkpoints")
        cut = self._take_cut()
        self._say("reading the copies")
        self._read_s = time.monotonic()
        with closing(self._replicas(cut)) as replicas:
            return self._compared(cut, replicas)

    def _compared(self, cut: Cut, replicas: Replicas) -> ReconcileResult:
        self._say("comparing hours")
        counts, every = self._counts, self._options.deep
        copies = self._of_shards(
            "nodes array<string>", {o.place: (o.nodes,) for o in replicas.compared if o.nodes}
        )
        suspected = self._kept("suspects", suspects(replicas.sums(), copies, every=every))
        counts.hours_differing = suspected.count()
        if counts.hours_differing or every:
            logged = self._logged(cut, replicas, suspected)
            wrong = wrong_hours(suspected, logged, copies, replicas.damaged(), replicas.hashed)
            self._say("comparing records")
            found = self._findings(replicas, self._kept("wrong", wrong), logged)
        else:
            found = self._others(replicas)
        found = kept(found.coalesce(1), self._options.path("findings"))
        ids = {place: (shard.topic_id,) for place, shard in served(cut).items()}
        plan = Plan(
            id=uuid.uuid4().hex,
            cluster=cluster_id(native_options(self._options.client)),
            made_ms=cut.taken_ms,
            steps=tuple(plan_steps(found, self._of_shards("topic_id string", ids))),
        )
        least = 1 if every else 2
        alone = sum(len(one.nodes) < least for one in replicas.compared)
        counts.uncompared = alone + len(cut.unserved)
        result = self._result((*cut.notes, *counts.notes()), replicas, found, plan)
        write_text(result.paths["plan"], plan.encode())
        write_text(result.paths["report"], page(result, found))
        delete(self._options.path("work"))
        return result

    def _take_cut(self) -> Cut:
        wanted = set() if self._options.folders else {self._options.digests}
        cut = take_cut(self._options.client, self._options.checkpoint, lambda *_: wanted)
        named = {shard.rpartition(":")[0] for shard in cut.served}
        if named and not named & cut.partitions.keys():
            raise KafkaEdgeError(
                f"none of the delay topics that {self._options.checkpoint} speaks of is there: "
                f"{', '.join(sorted(named))}; give this user Read on them if they are"
            )
        topics = {*wanted, self._options.topic or self._options.checkpoint}
        if missing := topics - cut.partitions.keys():
            raise KafkaEdgeError(
                f"there is no topic {', '.join(sorted(missing))}: name it as the settings "
                "topics.digests and topics.audit do, enable digests on the nodes, or compare the "
                "nodes' folders"
            )
        return cut

    def _replicas(self, cut: Cut) -> Replicas:
        if self._options.folders:
            return OnDisk(self._spark, self._options, cut)
        return Live(self._spark, self._options, cut, self._stop)

    def _kept(self, name: str, rows: DataFrame) -> DataFrame:
        return kept(rows, self._options.path(f"work/{name}"))

    def _of_shards(self, columns: str, facts: Mapping[Place, tuple[object, ...]]) -> DataFrame:
        rows = [(*place, *fact) for place, fact in facts.items()]
        return self._spark.createDataFrame(rows, f"topic string, partition int, {columns}")

    def _logged(self, cut: Cut, replicas: Replicas, suspected: DataFrame) -> DataFrame:
        parts = self._parts(served(cut), replicas, suspected)
        self._counts.log_offsets = sum(part.stop - part.start for part in parts.values())
        sifted = self._kept("sifted", self._sift(parts))
        earlier = before(sifted, parts)
        if earlier:
            sifted = sifted.union(self._sift(earlier))
        records = uncancelled(sifted).transform(with_hour)
        if not self._options.deep:
            records = records.join(suspected.select(*HOUR), HOUR, "left_semi")
        return self._kept("logged", records)

    def _sift(self, parts: Mapping[Place, LogPart]) -> DataFrame:
        options = self._options
        secrets, tasks = options.secrets, options.min_partitions
        return sift(self._spark, options.client, parts, HASHES, secrets, tasks)

    def _parts(
        self, shards: Mapping[Place, ShardCut], replicas: Replicas, suspected: DataFrame
    ) -> dict[Place, LogPart]:
        compared = {one.place: one for one in replicas.compared}
        bounds = self._bounds(replicas, suspected)
        starts = self._starts({p: (shards[p], first) for p, (first, _) in bounds.items()})
        return {
            place: LogPart(
                shards[place].contracts,
                min(starts[place], compared[place].cursor.offset),
                compared[place].cursor.offset,
                compared[place].cursor,
                *keys,
                shards[place].span.start,
            )
            for place, keys in bounds.items()
        }

    def _starts(self, first: Mapping[Place, tuple[ShardCut, int]]) -> dict[Place, int]:
        by_time: dict[int, list[Place]] = {}
        for place, (shard, key_ms) in first.items():
            since_ms = written_since_ms(shard.contracts, key_ms)
            by_time.setdefault(since_ms - since_ms % HOUR_MS, []).append(place)
        admin, found = admin_client(native_options(self._options.client)), dict[Place, int]()
        for since_ms, places in by_time.items():
            found |= offsets_since(admin, places, since_ms)
        spans = {place: shard.span for place, (shard, _) in first.items()}
        return {p: max(span.start, found.get(p, span.end)) for p, span in spans.items()}

    def _bounds(self, replicas: Replicas, suspected: DataFrame) -> dict[Place, tuple[int, int]]:
        # The lowest key time whose records are needed from the log, and the exclusive end, epoch
        # ms.
        starts = {one.place: one.from_ms for one in replicas.compared if one.nodes}
        if self._options.deep:
            return {place: (from_ms, DUE_STOP_MS + 1) for place, from_ms in starts.items()}
        found = suspected.groupBy(*SHARD).agg(sf.min("hour_ms"), sf.max("hour_ms") + HOUR_MS)
        return {
            (topic, number): (max(first, starts[topic, number]), stop)
            for topic, number, first, stop in found.collect()
        }

    def _findings(self, replicas: Replicas, wrong: DataFrame, logged: DataFrame) -> DataFrame:
        asked = self._asked(replicas, wrong, logged)
        if asked.isEmpty():
            return self._others(replicas)
        hours = asked.orderBy(sf.desc("is_wrong"), *PLACE).drop("is_wrong")
        held, told = replicas.records(hours)
        # What K passes while this works is delivered, and pruned on one node before another; and
        # retention may have moved the log's start while it was read.
        later = served(take_cut(self._options.client, self._options.checkpoint, lambda *_: ()))
        from_ms = {one.place: one.from_ms for one in replicas.compared}
        facts = {
            place: (shard.span.start, shard.later.key[0], from_ms[place])
            for place, shard in later.items()
            if place in from_ms
        }
        shards = self._of_shards("log_start bigint, k_ms bigint, from_ms bigint", facts)
        shards = sf.broadcast(shards)
        scope = self._kept("scope", told.join(shards, SHARD).drop("k_ms", "from_ms", "why"))
        theirs = self._kept("held", held.transform(with_hour).join(scope, PLACE, "left_semi"))
        unjudged = theirs.join(shards, SHARD).where("offset < log_start").select(*theirs.columns)
        records = self._kept("records", compare(theirs, logged, scope))
        found = records.union(hour_findings(wrong, records, unjudged, told)).join(shards, SHARD)
        first_ms = sf.coalesce("key_ms", sf.greatest("start_ms", "from_ms"))
        is_passed = first_ms <= sf.col("k_ms")
        self._counts.passed = found.where(is_passed).count()
        self._counts.unjudged = unjudged.count()
        others = self._others(replicas)
        return found.where(~is_passed).select(*others.columns).union(others)

    def _asked(self, replicas: Replicas, wrong: DataFrame, logged: DataFrame) -> DataFrame:
        # Digests cover only the ids of records with ids: a deep comparison asks for those hours
        # too.
        asked = wrong.select(*PLACE, sf.expr("true").alias("is_wrong"))
        if not self._options.deep or replicas.hashed == "payload_hash":
            return asked
        named = logged.where("record_id is not null").select(*HOUR).distinct()
        named = named.join(sf.broadcast(copies_of(self._spark, replicas.compared)), SHARD)
        named = outside(named, replicas.damaged()).join(wrong, PLACE, "left_anti")
        return asked.union(named.select(*PLACE, sf.expr("false")))

    def _others(self, replicas: Replicas) -> DataFrame:
        replicas.look_again()
        rows = [
            (kind, node or None, *one.place, None, None, None, None, why)
            for one in replicas.compared
            for kind, said in (("behind", one.behind), ("silent", one.silent))
            for node, why in said.items()
        ]
        absent = self._spark.createDataFrame(rows, FINDING)
        return damage_findings(replicas.damaged()).union(absent)

    def _result(
        self, notes: tuple[str, ...], replicas: Replicas, found: DataFrame, plan: Plan
    ) -> ReconcileResult:
        options, counts = self._options, self._counts
        counts.hour_rows = replicas.hours
        counts.pending = sum(one.pending for one in replicas.compared)
        counts.records = sum(
            one.records for one in replicas.compared if options.deep or len(one.nodes) > 1
        )
        kinds = counts_by("kind", found)
        return ReconcileResult(
            findings={kind: kinds[kind] for kind in KINDS if kind in kinds},
            counts=counts,
            seconds=time.monotonic() - self._began_s,
            read_s=self._read_s,
            paths={name: options.path(file) for name, file in _FILES.items()},
            plan=plan,
            sample=tuple(r.asDict() for r in found.orderBy(*_ORDER).limit(SAMPLE_ROWS).collect()),
            compared=tuple(replicas.compared),
            wrong=frozenset(tuple(row) for row in found.select(*COPY).distinct().collect()),
            notes=notes,
        )


_FILES: Final = {
    "findings": "findings",
    "summary": "summary.json",
    "plan": "plan.json",
    "report": "report.html",
}
