"""Do all copies hold the same, and is that what the delay topics say?

Copies are first compared with each other by sums of slots, for that is a row for each slot and not
one for each record. Where they differ, the log decides which is right: what it says is pending is
summed up in the same way, and copies with other sums are held against it record by record. All of
that is Spark's work; the driver sees counts, bounded samples and the steps of the plan.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors.kafka.clients import admin_client
from connectors.kafka.log_ends import ASK_TIMEOUT_S
from connectors.kafka.repairs import RepairDesk
from connectors.spark.common.cut import Cut, take_cut
from connectors.spark.common.files import delete, write_text
from connectors.spark.common.progress import Say
from connectors.spark.common.topics import Place, native_options, read_topic
from connectors.spark.reconcile import digests
from connectors.spark.reconcile.copies import Live, OnDisk, Replicas, served, slot_start
from connectors.spark.reconcile.digests import Comparison, Expected
from connectors.spark.reconcile.logged import LogPart, pending_records
from connectors.spark.reconcile.page import heat, page
from connectors.spark.reconcile.plan import Plan, first_steps
from connectors.spark.reconcile.slots import (
    COPY,
    FINDING,
    KINDS,
    LOGGED,
    SHARD,
    SLOT,
    WRONG,
    damage_findings,
    outside,
    plan_steps,
    ranges_of,
    record_findings,
    slot_findings,
    suspects,
    told_in,
    wrong_slots,
)
from delayservice.core.digest import SLOT_MS
from delayservice.core.times import DUE_STOP_MS
from delayservice.errors import KafkaEdgeError

SAMPLE_ROWS: Final = 20
VERSION: Final = 1


class _Counts(NamedTuple):
    """Slots that were held against the log, how many of the wrong ones K has passed since, and
    records in wrong ones that lie below the log's start.
    """

    differing: int
    passed: int = 0
    unjudged: int = 0

    def notes(self) -> list[str]:
        """For people: what could not be judged."""
        said = "records in slots that differ lie below the start of their delay topic"
        why = "retention has deleted them there, so the log can't judge them; they are left as are"
        return [f"{self.unjudged} {said}: {why}"] if self.unjudged else []


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileOptions:
    """Options of a comparison.

    Attributes:
        client: options of librdkafka, ``bootstrap.servers`` at least.
        out: folder or URL for the results, as Spark names them; what it holds is replaced.
        checkpoint: the service's checkpoint topic.
        digests: its digest topic.
        repairs: its repair topic.
        folders: copies on disks, a node's state folder by its name; none: running nodes, by their
            digests.
        expected: which copies should be there.
        deep: hold every slot against the delay topics, not only where copies differ.
        details: ask running nodes for the records of slots that are wrong.
        secrets: the cluster's, to tell forged copies; none: copies are believed.
        behind_records: a copy on a disk that lacks more of the log than this is behind.
        answer_timeout_s: how long to wait for the details of some slots.
        min_partitions: tasks at least that read a topic.
    """

    client: Mapping[str, str]
    out: str
    checkpoint: str = "delay_checkpoint"
    digests: str = "delay_digests"
    repairs: str = "delay_repairs"
    folders: Mapping[str, str] = field(default_factory=dict)
    expected: Expected = field(default_factory=Expected)
    deep: bool = False
    details: bool = True
    secrets: tuple[bytes, ...] = field(default=(), repr=False)
    behind_records: int = 100_000
    answer_timeout_s: float = 60.0
    min_partitions: int = 8

    def path(self, name: str) -> str:
        """Something in ``out``."""
        return f"{self.out.rstrip('/')}/{name}"


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """The result of a comparison.

    Attributes:
        findings: how many of each kind; kinds without any are left out.
        slot_rows: rows of digests that were read: one for each slot of a copy; 0 on disks.
        slots_differing: slots that were held against the log.
        slots_passed: of those, how many K passed meanwhile: what was found there is left out.
        unjudged: records of copies in slots that differ from the log, below its start: they are no
            findings, for they can't be judged.
        seconds: for all of it.
        findings_path: the Parquet dataset.
        summary_path: the JSON file.
        plan_path: the repair plan.
        report_path: the page for people.
        plan: what it says.
        sample: the first findings, for people.
        compared: every shard, with what was compared.
    """

    findings: Mapping[str, int]
    slot_rows: int
    slots_differing: int
    slots_passed: int
    unjudged: int
    seconds: float
    findings_path: str
    summary_path: str
    plan_path: str
    report_path: str
    plan: Plan
    sample: tuple[Mapping[str, Any], ...]
    compared: tuple[Comparison, ...]
    notes: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        """Return whether nothing was found."""
        return not self.findings

    def to_json(self) -> dict[str, object]:
        """Return the content of ``summary.json``."""
        return {
            "v": VERSION,
            "kind": "reconcile",
            "at_ms": self.plan.made_ms,
            "clean": self.is_clean,
            "findings": dict(self.findings),
            "slot_rows": self.slot_rows,
            "slots_differing": self.slots_differing,
            "slots_passed": self.slots_passed,
            "unjudged": self.unjudged,
            "seconds": round(self.seconds, 3),
            "findings_path": self.findings_path,
            "plan_path": self.plan_path,
            "report_path": self.report_path,
            "plan_id": self.plan.id,
            "steps": len(self.plan.steps),
            "shards": [one.to_json() for one in self.compared],
            "notes": list(self.notes),
        }


def reconcile(
    spark: SparkSession, options: ReconcileOptions, say: Say = lambda _: None
) -> ReconcileResult:
    """Compare the copies of a cluster, and write findings, a summary, a page and a repair plan.

    Args:
        spark: the session.
        options: what and how.
        say: told in a few words what is being done.

    Raises:
        KafkaEdgeError: the cluster can't be read, or a topic that is named does not exist.
        StoreError: a folder holds no wheel, or may not be read.
    """
    return _Reconciling(spark, options, say).run()


class _Reconciling:
    """One comparison, step by step; what steps hand to each other lies in ``<out>/work``."""

    def __init__(self, spark: SparkSession, options: ReconcileOptions, say: Say) -> None:
        self._spark = spark
        self._options = options
        self._say = say
        self._began_s = time.monotonic()

    def run(self) -> ReconcileResult:
        """Take all steps."""
        self._say("looking at the checkpoints")
        cut = self._take_cut()
        self._say("reading the copies")
        with closing(self._replicas(cut)) as replicas:
            return self._compared(cut, replicas)

    def _compared(self, cut: Cut, replicas: Live | OnDisk) -> ReconcileResult:
        self._say("comparing slots")
        copies = self._of_shards(
            "nodes array<string>", {o.place: (o.nodes,) for o in replicas.compared if o.nodes}
        )
        every = self._options.deep
        sums = replicas.sums(every=every)
        suspected = self._kept("suspects", suspects(sums, copies, every=every))
        count = suspected.count()
        logged = self._logged(cut, replicas, suspected) if count or every else self._nothing(LOGGED)
        logged = self._kept("logged", logged)
        wrong = wrong_slots(suspected, logged, copies, replicas.damaged(), replicas.hashed)
        wrong = self._kept("wrong", wrong if count or every else self._nothing(WRONG))
        self._say("comparing records")
        path = self._options.path("findings")
        counts, found = self._findings(_Counts(count), replicas, wrong, logged)
        found.coalesce(1).write.mode("overwrite").parquet(path)
        found = self._spark.read.schema(FINDING).parquet(path)
        plan, more = self._plan(cut, replicas, found, logged)
        notes = (*cut.notes, *counts.notes(), *more)
        result = self._result(notes, replicas, found, plan, counts)
        self._write(result, found)
        return result

    # --- what there is -------------------------------------------------------------------------

    def _take_cut(self) -> Cut:
        wanted = set() if self._options.folders else {self._options.digests}
        cut = take_cut(self._options.client, self._options.checkpoint, lambda *_: wanted)
        missing = wanted - cut.partitions.keys()
        if missing:
            raise KafkaEdgeError(
                f"there is no topic {', '.join(missing)}: name it as the setting topics.digests "
                "does, enable digests on the nodes, or compare the nodes' folders"
            )
        return cut

    def _replicas(self, cut: Cut) -> Live | OnDisk:
        options = self._options
        if options.folders:
            expected = options.expected
            if not expected.replicas:
                expected = replace(expected, nodes=tuple(sorted(options.folders)))
            return OnDisk(
                self._spark,
                options.folders,
                cut,
                expected,
                options.behind_records,
                options.path("work/copies"),
            )
        places = [(options.digests, number) for number in range(cut.partitions[options.digests])]
        rows = digests.parse_keys(
            read_topic(
                self._spark,
                options.client,
                [options.digests],
                cut.starts(places),
                cut.ends(places),
                options.min_partitions,
            )
        ).persist()
        ids = {place: shard.topic_id for place, shard in served(cut).items()}
        compared = digests.choose(digests.newest_cuts(rows), ids, options.expected)
        desk = RepairDesk(native_options(options.client), options.repairs)
        return Live(
            self._spark,
            rows,
            compared,
            desk if options.details else None,
            options.path("work/details"),
            options.answer_timeout_s,
        )

    def _kept(self, name: str, rows: DataFrame) -> DataFrame:
        """Written down, for it is used several times."""
        path = self._options.path(f"work/{name}")
        rows.write.mode("overwrite").parquet(path)
        return self._spark.read.schema(rows.schema).parquet(path)

    def _nothing(self, columns: str) -> DataFrame:
        return self._spark.createDataFrame([], columns)

    def _of_shards(self, columns: str, facts: Mapping[Place, tuple[object, ...]]) -> DataFrame:
        """A small data frame with a row for each shard."""
        rows = [(*place, *fact) for place, fact in facts.items()]
        return self._spark.createDataFrame(rows, f"topic string, partition int, {columns}")

    # --- the log -------------------------------------------------------------------------------

    def _logged(self, cut: Cut, replicas: Replicas, suspected: DataFrame) -> DataFrame:
        """Return what the log says is pending in the suspected slots."""
        shards, compared = served(cut), {one.place: one for one in replicas.compared}
        parts = {
            place: LogPart(
                shards[place].contracts,
                shards[place].span.start,
                compared[place].cursor.offset,
                *bounds,
            )
            for place, bounds in self._bounds(replicas, suspected).items()
        }
        options = self._options
        records = pending_records(
            self._spark, options.client, parts, options.secrets, options.min_partitions
        ).withColumn("slot_start_ms", slot_start(sf.col("key_ms")))
        if options.deep:
            return records
        return records.join(suspected.select(*SLOT), SLOT, "left_semi")

    def _bounds(self, replicas: Replicas, suspected: DataFrame) -> dict[Place, tuple[int, int]]:
        """Return the first and last key that matter of each shard."""
        if self._options.deep:
            return {one.place: (one.from_ms, DUE_STOP_MS) for one in replicas.compared if one.nodes}
        found = suspected.groupBy(*SHARD).agg(
            sf.min("slot_start_ms"), sf.max("slot_start_ms") + SLOT_MS
        )
        return {(topic, number): (first, stop) for topic, number, first, stop in found.collect()}

    # --- findings ------------------------------------------------------------------------------

    def _findings(
        self, counts: _Counts, replicas: Replicas, wrong: DataFrame, logged: DataFrame
    ) -> tuple[_Counts, DataFrame]:
        """All findings but those of slots that K has passed meanwhile; and ``counts`` with what is
        left out.
        """
        others = damage_findings(replicas.damaged()).union(self._absent(replicas))
        if wrong.isEmpty():
            return counts, others
        told, unanswered = replicas.records(ranges_of(wrong))
        asked = outside(wrong, unanswered)
        # What K passes while this works is delivered, and pruned on one node before another; and
        # retention may have moved the log's start while it was read.
        later = served(take_cut(self._options.client, self._options.checkpoint, lambda *_: ()))
        starts = {place: (shard.span.start,) for place, shard in later.items()}
        log_starts = self._of_shards("log_start bigint", starts)
        theirs = self._kept("told", told_in(asked, told, log_starts))
        records = self._kept("records", record_findings(asked, logged, theirs))
        found = records.union(slot_findings(wrong, records, theirs, unanswered))
        keys = {place: (shard.later.key[0],) for place, shard in later.items()}
        cursors = sf.broadcast(self._of_shards("k_ms bigint", keys))
        passed = wrong.join(cursors, SHARD).where("slot_start_ms <= k_ms").count()
        found = found.join(cursors, SHARD).where("slot_start_ms > k_ms")
        unjudged = theirs.where("not is_judged").count()
        counts = counts._replace(passed=passed, unjudged=unjudged)
        return counts, found.select(*others.columns).union(others)

    def _absent(self, replicas: Replicas) -> DataFrame:
        """Copies that can't be compared."""
        rows = [
            (kind, node or None, *one.place, None, None, None, None, why)
            for one in replicas.compared
            for kind, said in (("behind", one.behind), ("silent", one.silent))
            for node, why in said.items()
        ]
        return self._spark.createDataFrame(rows, FINDING)

    def _plan(
        self, cut: Cut, replicas: Replicas, found: DataFrame, logged: DataFrame
    ) -> tuple[Plan, list[str]]:
        """The plan, and what there is to say of it."""
        shards = served(cut)
        facts = {
            one.place: (one.cursor.offset, shards[one.place].span.start)
            for one in replicas.compared
        }
        bounds = self._of_shards("below bigint, log_start bigint", facts)
        steps, more = first_steps(plan_steps(found, logged, replicas.damaged(), bounds))
        plan = Plan(
            id=uuid.uuid4().hex,
            cluster=cluster_id(self._options.client),
            made_ms=cut.taken_ms,
            steps=steps,
        )
        return plan, more

    # --- result --------------------------------------------------------------------------------

    def _result(
        self,
        notes: tuple[str, ...],
        replicas: Replicas,
        found: DataFrame,
        plan: Plan,
        counts: _Counts,
    ) -> ReconcileResult:
        options = self._options
        kinds = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
        order = ["kind", *COPY, "slot_start_ms", "offset"]
        return ReconcileResult(
            findings={kind: kinds[kind] for kind in KINDS if kind in kinds},
            slot_rows=replicas.slots,
            slots_differing=counts.differing,
            slots_passed=counts.passed,
            unjudged=counts.unjudged,
            seconds=time.monotonic() - self._began_s,
            findings_path=options.path("findings"),
            summary_path=options.path("summary.json"),
            plan_path=options.path("plan.json"),
            report_path=options.path("report.html"),
            plan=plan,
            sample=tuple(r.asDict() for r in found.orderBy(*order).limit(SAMPLE_ROWS).collect()),
            compared=tuple(replicas.compared),
            notes=notes,
        )

    def _write(self, result: ReconcileResult, found: DataFrame) -> None:
        summary = json.dumps(result.to_json(), indent=2) + "\n"
        write_text(result.summary_path, summary)
        write_text(result.plan_path, result.plan.encode())
        write_text(result.report_path, page(result, heat(found)))
        delete(self._options.path("work"))


def cluster_id(client: Mapping[str, str]) -> str:
    """The id of a Kafka cluster: what a plan is made for.

    Raises:
        KafkaEdgeError: it does not answer.
    """
    admin = admin_client(native_options(client))
    try:
        found = admin.list_topics(timeout=ASK_TIMEOUT_S)
    except KafkaException as exc:
        raise KafkaEdgeError(f"the cluster does not say its id: {admin.explain(exc)}") from exc
    return str(found.cluster_id)
