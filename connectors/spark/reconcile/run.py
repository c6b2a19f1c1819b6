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
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from connectors.kafka.log_ends import offsets_since
from connectors.spark.common.clients import admin_of
from connectors.spark.common.cut import Cut, ShardCut, take_cut
from connectors.spark.common.files import delete, write_text
from connectors.spark.common.frames import kept
from connectors.spark.common.pending import LogPart, before, sift, uncancelled, written_since_ms
from connectors.spark.common.progress import Say
from connectors.spark.common.sink import name_for, publish
from connectors.spark.common.topics import Place
from connectors.spark.reconcile.compare import (
    COPY,
    FINDING,
    HOUR,
    KINDS,
    LIMITS,
    OF_RECORDS,
    PLACE,
    SHARD,
    compare,
    frame_of,
    hour_findings,
    hours_to_ask,
    outside,
    suspects,
    with_hour,
)
from connectors.spark.reconcile.copies import Live, OnDisk, Replicas, served
from connectors.spark.reconcile.options import Counts, ReconcileOptions, ReconcileResult
from connectors.spark.reconcile.page import page
from connectors.spark.reconcile.repair_plan import Copy, Plan, RepairStep
from connectors.spark.reconcile.stored import HASHES
from delayservice.base.errors import KafkaEdgeError
from delayservice.contract.times import DUE_STOP_MS
from delayservice.replicas.digest import HOUR_MS

SAMPLE_ROWS: Final = 20
# Largest number of findings that one comparison publishes, as the next comparison finds most of
# them again.
PUBLISHED_MAX: Final = 100
_ORDER: Final = ["kind", *COPY, "start_ms", "offset"]
_REPAIRED: Final = (*OF_RECORDS, "damaged")
_FILES: Final = {
    "findings": "findings",
    "summary": "summary.json",
    "plan": "plan.json",
    "report": "report.html",
}


def reconcile(
    spark: SparkSession, options: ReconcileOptions, say: Say = lambda _: None
) -> ReconcileResult:
    """Compare the copies of a cluster; write findings, a summary, a page and a repair plan; return
    the result.

    Raises:
        KafkaEdgeError: the cluster can't be read, or a topic named in the options does not exist.
        StoreError: a folder holds no store, or may not be read.
    """
    result = compare_copies(spark, options, say, threading.Event())
    conclude(spark, options, result)
    return result


def conclude(
    spark: SparkSession,
    options: ReconcileOptions,
    result: ReconcileResult,
    repairs: Mapping[str, object] | None = None,
) -> None:
    """Write the summary, with the numbers of ``repairs``, and publish it."""
    summary = result.to_json() | ({} if repairs is None else {"repairs": repairs})
    write_text(result.paths["summary"], json.dumps(summary, indent=2) + "\n")
    if options.topic is not None:
        del summary["shards"]  # there may be thousands, and a record must stay small
        found = spark.read.schema(from_arrow_schema(FINDING)).parquet(result.paths["findings"])
        first = found.orderBy(*_ORDER).limit(PUBLISHED_MAX)
        sender = (name_for("reconcile", options.out), None)
        publish(options.client, options.topic, sender, ("copy_finding", first), summary)


def compare_copies(
    spark: SparkSession, options: ReconcileOptions, say: Say, stop: threading.Event
) -> ReconcileResult:
    """Compare the copies and write findings, page and repair plan, but no summary. If ``stop`` is
    set, waiting for nodes ends with ``DelayServiceError``.
    """
    began_s = time.monotonic()
    say("looking at the checkpoints")
    cut = _cut_of(options)
    say("reading the copies")
    read_s = time.monotonic()
    replicas = OnDisk(spark, options, cut) if options.folders else Live(spark, options, cut, stop)
    say("comparing hours")
    counts = Counts()
    comparing = _Comparing(spark, options, served(cut), replicas, say, counts)
    found = kept(comparing.findings().coalesce(1), options.path("findings"))
    by_copy = defaultdict[Copy, Counter[str]](Counter)
    for node, topic, partition, kind, count in found.groupBy(*COPY, "kind").count().collect():
        by_copy[node, topic, partition][kind] = count
    kinds = sum(by_copy.values(), Counter[str]())
    compared = {(node, *one.place) for one in replicas.compared for node in one.nodes}
    counts.add(replicas.compared, len(cut.unserved), is_deep=options.deep)
    result = ReconcileResult(
        findings={kind: kinds[kind] for kind in KINDS if kind in kinds},
        counts=counts,
        seconds=time.monotonic() - began_s,
        read_s=read_s,
        paths={name: options.path(file) for name, file in _FILES.items()},
        plan=Plan(
            id=uuid.uuid4().hex,
            made_ms=cut.taken_ms,
            steps=_steps(by_copy, {shard.place: shard.topic_id for shard in cut.shards}),
        ),
        sample=tuple(row.asDict() for row in found.orderBy(*_ORDER).limit(SAMPLE_ROWS).collect()),
        compared=tuple(replicas.compared),
        right=frozenset(compared - by_copy.keys()),
        notes=(*cut.notes, *counts.notes()),
    )
    write_text(result.paths["plan"], result.plan.encode())
    write_text(result.paths["report"], page(result, found))
    delete(options.path("work"))
    return result


def _cut_of(options: ReconcileOptions) -> Cut:
    wanted = set() if options.folders else {options.digests}
    cut = take_cut(options.client, options.checkpoint, lambda _: wanted)
    named = {shard.rpartition(":")[0] for shard in cut.served}
    if named and not named & cut.partitions.keys():
        raise KafkaEdgeError(
            f"none of the delay topics that {options.checkpoint} speaks of is there: "
            f"{', '.join(sorted(named))}; give this user Read on them if they are"
        )
    if missing := {*wanted, options.topic or options.checkpoint} - cut.partitions.keys():
        raise KafkaEdgeError(
            f"there is no topic {', '.join(sorted(missing))}: name it as the settings "
            "topics.digests and topics.audit do, enable digests on the nodes, or compare the "
            "nodes' folders"
        )
    return cut


def _steps(
    by_copy: Mapping[Copy, Mapping[str, int]], topic_ids: Mapping[Place, str]
) -> tuple[RepairStep, ...]:
    # A step for each copy with findings that a rebuild from the log repairs.
    steps = []
    for (node, topic, partition), counts in by_copy.items():
        why = ", ".join(f"{counts[kind]} {kind}" for kind in _REPAIRED if kind in counts)
        if why and (topic, partition) in topic_ids:
            topic_id = topic_ids[topic, partition]
            steps.append(
                RepairStep(node=node, topic=topic, topic_id=topic_id, partition=partition, why=why)
            )
    return tuple(sorted(steps, key=lambda step: step.copy))


@dataclass(frozen=True, slots=True)
class _Comparing:
    """Comparison of copies with each other, then with the log; the data between its steps is stored
    in ``<out>/work``.
    """

    spark: SparkSession
    options: ReconcileOptions
    shards: Mapping[Place, ShardCut]
    replicas: Replicas
    say: Say
    counts: Counts

    def findings(self) -> DataFrame:
        replicas, is_deep = self.replicas, self.options.deep
        suspected = suspects(replicas.sums, replicas.copies, every=is_deep)
        suspected = self._kept("suspects", suspected)
        if not is_deep and suspected.isEmpty():
            return self._others()
        logged = self._logged(suspected)
        self.say("comparing records")
        asked = hours_to_ask(suspected, replicas.sums, logged, replicas.copies, replicas.hashed)
        if not is_deep or replicas.hashed == "payload_hash":
            # Digests cover only the ids of records with ids: a deep comparison asks for those
            # hours too.
            asked = asked.where("is_wrong")
        asked = self._kept("asked", outside(asked, replicas.damaged).drop("has_ids"))
        return self._others() if asked.isEmpty() else self._of_records(asked, logged)

    def _kept(self, name: str, rows: DataFrame) -> DataFrame:
        return kept(rows, self.options.path(f"work/{name}"))

    def _logged(self, suspected: DataFrame) -> DataFrame:
        parts = self._parts(suspected)
        self.counts.log_offsets = sum(part.stop - part.start for part in parts.values())
        sifted = self._kept("sifted", self._sift(parts))
        if earlier := before(sifted, parts):
            sifted = sifted.union(self._sift(earlier))
        records = uncancelled(sifted).transform(with_hour)
        if not self.options.deep:
            records = records.join(suspected, HOUR, "left_semi")
        return self._kept("logged", records)

    def _sift(self, parts: Mapping[Place, LogPart]) -> DataFrame:
        options = self.options
        secrets, tasks = options.secrets, options.min_partitions
        return sift(self.spark, options.client, parts, HASHES, secrets, tasks)

    def _parts(self, suspected: DataFrame) -> dict[Place, LogPart]:
        compared = {one.place: one for one in self.replicas.compared if one.nodes}
        # The key times, epoch ms, whose records are needed from the log, the end exclusive.
        keys = {place: (one.from_ms, DUE_STOP_MS + 1) for place, one in compared.items()}
        if not self.options.deep:
            hours = suspected.groupBy(*SHARD).agg(sf.min("hour_ms"), sf.max("hour_ms") + HOUR_MS)
            keys = {
                (topic, number): (max(first_ms, compared[topic, number].from_ms), stop_ms)
                for topic, number, first_ms, stop_ms in hours.collect()
            }
        parts, admin = {}, admin_of(self.options.client)
        for place, bounds in keys.items():
            shard, cursor = self.shards[place], compared[place].cursor
            since_ms = written_since_ms(shard.contracts, bounds[0])
            start = offsets_since(admin, [place], since_ms).get(place, shard.span.end)
            start = min(max(start, shard.span.start), cursor.offset)
            parts[place] = LogPart(
                shard.contracts, start, cursor.offset, cursor, *bounds, shard.span.start
            )
        return parts

    def _of_records(self, asked: DataFrame, logged: DataFrame) -> DataFrame:
        ordered = asked.orderBy(sf.desc("is_wrong"), *PLACE).select(*PLACE)
        held, told = self.replicas.records(ordered)
        # What K passes while this works is delivered, and pruned on one node before another; and
        # retention may have moved the log's start while it was read.
        later = served(take_cut(self.options.client, self.options.checkpoint, lambda _: ()))
        from_ms = {one.place: one.from_ms for one in self.replicas.compared}
        limits = [
            (*place, shard.span.start, shard.later.key[0], from_ms[place])
            for place, shard in later.items()
            if place in from_ms
        ]
        shards = sf.broadcast(frame_of(self.spark, limits, LIMITS))
        scope = told.join(shards.select(*SHARD, "log_start"), SHARD).drop("why")
        scope = self._kept("scope", scope)
        held = self._kept("held", held.join(scope, PLACE, "left_semi"))
        unjudged = held.join(shards, SHARD).where("offset < log_start")
        records = self._kept("records", compare(held, logged, scope))
        wrong = asked.where("is_wrong").drop("is_wrong")
        found = records.union(hour_findings(wrong, records, unjudged, told)).join(shards, SHARD)
        first_ms = sf.coalesce("key_ms", sf.greatest("start_ms", "from_ms"))
        is_passed = first_ms <= sf.col("later_ms")
        self.counts.passed = found.where(is_passed).count()
        self.counts.unjudged = unjudged.count()
        return found.where(~is_passed).select(*FINDING.names).union(self._others())

    def _others(self) -> DataFrame:
        self.replicas.look_again()
        absent = [
            (kind, node or None, *one.place, None, None, None, None, why)
            for one in self.replicas.compared
            for kind, said in (("behind", one.behind), ("silent", one.silent))
            for node, why in said.items()
        ]
        return self.replicas.damaged.union(frame_of(self.spark, absent, FINDING))
