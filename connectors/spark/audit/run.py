"""The delivery audit: every settled record has exactly one settlement, and that is as it should be.

One pass: source records and outputs become narrow rows (``ledger.rows``), one shuffle brings those
of a record together (``plan``), and each group is judged where it lies (``verdicts``,
``judge``). What depends on other records of the same id is decided in a second pass, which sees
only those that bear one. The driver sees counts and a few rows to show, never the data.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors.kafka.clients import flush, producer_client
from connectors.spark.audit.judge import FOUND, UNJUDGED
from connectors.spark.audit.plan import FINDING, OffsetRange, Plan, Scope
from connectors.spark.audit.verdicts import COUNT, JUDGED
from connectors.spark.common.cut import Cut, take_cut
from connectors.spark.common.files import delete_folder, write_text
from connectors.spark.common.topics import java_options
from delayservice.core.contract import Contracts
from delayservice.core.targets import Allowlist
from delayservice.errors import KafkaEdgeError

__all__ = ["FINDING", "AuditOptions", "AuditResult", "OffsetRange", "audit", "audit_at"]

SAMPLE_ROWS: Final = 20
VERSION: Final = 1
"""Version of the records that are written to ``AuditOptions.topic``."""
EXIT_FINDINGS: Final = 3
EXIT_UNJUDGED: Final = 4
NO_CHECKPOINT: Final = "no_checkpoint"
NO_EVIDENCE: Final = "no_evidence"
"""Reasons not to judge offsets, beside those in ``rules``: no checkpoint covers them, or retention
has removed evidence of all of them."""
_FLUSH_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """Options of an audit.

    Attributes:
        client: options of librdkafka, ``bootstrap.servers`` at least.
        out: folder or URL for the results, as Spark names them; what it holds is replaced.
        checkpoint: the service's checkpoint topic.
        dead_letter: its dead-letter topic.
        outcomes: its outcome topic.
        targets: target topics to read; none: every topic that a contract or ``allow`` allows.
        allow: patterns of targets in the settings of the nodes, which judge records whose contract
            has no allowlist; None: not known, so every topic is read that no rule reserves. What is
            not read any more is not checkable.
        all_topics: read every topic that is not Kafka's own, whatever is allowed.
        never: further topics of the service, which are left out: they hold no outputs.
        secrets: the cluster's secrets, to tell forged copies; none: copies are believed, but for
            those that the service refused.
        late_ms: report what is delivered later than this after it was due; None: nothing.
        early_ms: report only what is early by more than this.
        grace_ms: for ``at_least_once``: outputs younger than this may be ahead of the checkpoint,
            and a delivery that comes again within this time after a crash is none too many.
        overdue_ms: report what is not settled so long after its time had come; None: nothing.
        lag_ms: how far H may lag behind the log while records are delivered on time: a cancel that
            was written longer before a record was due wins.
        delay_topics: delay topics that should be in the checkpoints, as far as they exist.
        ranges: audit these source offsets only; none: all.
        topic: write findings and a summary to this topic, too.
    """

    client: Mapping[str, str]
    out: str
    checkpoint: str = "delay_checkpoint"
    dead_letter: str = "delay_dead_letter"
    outcomes: str = "delay_outcomes"
    targets: tuple[str, ...] = ()
    allow: tuple[str, ...] | None = None
    all_topics: bool = False
    never: tuple[str, ...] = ()
    secrets: tuple[bytes, ...] = field(default=(), repr=False)
    late_ms: int | None = None
    early_ms: int = 0
    grace_ms: int = 0
    overdue_ms: int | None = 600_000
    lag_ms: int = 30_000
    delay_topics: tuple[str, ...] = ()
    ranges: tuple[OffsetRange, ...] = ()
    topic: str | None = None

    def choose(self, contracts: Collection[Contracts], topics: Collection[str]) -> set[str]:
        """The topics to read beside the delay topics, of those that there are.

        Raises:
            KafkaEdgeError: one that is needed does not exist.
        """
        needed = {self.dead_letter, self.outcomes, *self.targets}
        missing = sorted(needed - set(topics))
        if missing:
            raise KafkaEdgeError(
                f"there is no topic {', '.join(missing)}: name dead letters and outcomes as the "
                "service's settings topics.dead_letter and topics.outcomes do, and targets that "
                "exist"
            )
        never = {self.checkpoint, f"{self.checkpoint}_claims", self.topic, *self.never}
        if self.all_topics:
            return needed | {t for t in topics if not t.startswith("__") and t not in never}
        return needed if self.targets else needed | (self._allowed(contracts, topics) - never)

    def _allowed(self, contracts: Collection[Contracts], topics: Collection[str]) -> set[str]:
        """Topics that a record of any shard may be delivered to."""
        rules = {contract for held in contracts for _, contract in held.entries()}
        lists = [Allowlist.of_contract(one, "") for one in rules if one.has_allowlist]
        if len(lists) < len(rules):
            lists.append(Allowlist("", ["*"] if self.allow is None else self.allow))
        return {t for t in topics if any(one.denial(t) is None for one in lists)}

    @property
    def scope(self) -> Scope:
        """The part of these options that the plan needs."""
        return Scope(
            client=self.client,
            dead_letter=self.dead_letter,
            outcomes=self.outcomes,
            secrets=self.secrets,
            ranges=self.ranges,
            late_ms=self.late_ms,
            early_ms=self.early_ms,
            grace_ms=self.grace_ms,
            overdue_ms=self.overdue_ms,
            lag_ms=self.lag_ms,
        )

    def path(self, name: str) -> str:
        """Something in ``out``."""
        return f"{self.out.rstrip('/')}/{name}"


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The result of an audit.

    Attributes:
        findings: how many of each kind; kinds without any are left out.
        unjudged: records in the judged ranges that could not be judged, by the reason why.
        judged: the offsets that the verdict is for.
        counts: records by what became of them; ``docs/audit.md`` explains each.
        records: source records that were audited.
        outputs: what settles them, as far as it was read.
        seconds: for all of it, the cut included.
        rows_per_s: source records per second.
        findings_path: the Parquet dataset.
        unjudged_path: the same of records that could not be judged.
        summary_path: the JSON file.
        sample: the first findings, for people.
        unjudged_sample: the first records that could not be judged.
        cut: what it was judged at.
        ranges: of offsets that were audited; none: all.
    """

    findings: Mapping[str, int]
    unjudged: Mapping[str, int]
    judged: tuple[OffsetRange, ...]
    counts: Mapping[str, int]
    records: int
    outputs: int
    seconds: float
    rows_per_s: float
    findings_path: str
    unjudged_path: str
    summary_path: str
    sample: tuple[Mapping[str, Any], ...]
    unjudged_sample: tuple[Mapping[str, Any], ...]
    cut: Cut
    ranges: tuple[OffsetRange, ...]

    @property
    def is_clean(self) -> bool:
        """Return whether nothing was found, and everything in the ranges was judged."""
        return not self.findings and not self.unjudged

    @property
    def status(self) -> int:
        """The exit status of the command."""
        return exit_status(len(self.findings), len(self.unjudged))

    def to_json(self) -> dict[str, object]:
        """Return the content of ``summary.json``."""
        return {
            "v": VERSION,
            "kind": "summary",
            "at_ms": self.cut.taken_ms,
            "ranges": [[r.topic, r.partition, r.start, r.stop] for r in self.ranges],
            "judged": [[r.topic, r.partition, r.start, r.stop] for r in self.judged],
            "clean": self.is_clean,
            "findings": dict(self.findings),
            "unjudged": dict(self.unjudged),
            "counts": dict(self.counts),
            "records": self.records,
            "outputs": self.outputs,
            "seconds": round(self.seconds, 3),
            "rows_per_s": round(self.rows_per_s),
            "findings_path": self.findings_path,
            "unjudged_path": self.unjudged_path,
            "cut": self.cut.to_json(),
        }


def exit_status(findings: int, unjudged: int) -> int:
    """Return 0: clean, 3: something is wrong, 4: nothing is, and something could not be judged."""
    if findings:
        return EXIT_FINDINGS
    return EXIT_UNJUDGED if unjudged else 0


def audit(spark: SparkSession, options: AuditOptions) -> AuditResult:
    """Audit a cluster as it is now.

    Raises:
        KafkaEdgeError: the cluster can't be read, or a topic that is named does not exist.
        DelayServiceError: a range is of no shard that is served.
    """
    began_s = time.monotonic()
    cut = take_cut(
        options.client, options.checkpoint, options.choose, expected=options.delay_topics
    )
    return audit_at(spark, options, cut, began_s)


def audit_at(
    spark: SparkSession, options: AuditOptions, cut: Cut, began_s: float | None = None
) -> AuditResult:
    """Audit at a cut that was taken before; ``began_s``: by the monotonic clock, when it all began.

    Raises:
        KafkaEdgeError: the cluster can't be read.
        DelayServiceError: a range is of no shard that is served.
    """
    began_s = time.monotonic() if began_s is None else began_s
    plan = Plan(spark, options.scope, cut)
    work, all_of_it = options.path("judged"), options.path("verdicts")
    plan.judged().write.mode("overwrite").parquet(work)
    judged = spark.read.schema(JUDGED).parquet(work)
    plan.findings(judged).write.mode("overwrite").parquet(all_of_it)
    decided = spark.read.schema(f"{FINDING}, verdict int").parquet(all_of_it)
    found = _written(decided, FOUND, options.path("findings"))
    unjudged = _written(decided, UNJUDGED, options.path("unjudged"))
    result = _result(options, plan, _sums(judged), found, unjudged, began_s)
    delete_folder(spark, work)
    delete_folder(spark, all_of_it)
    write_text(spark, result.summary_path, json.dumps(result.to_json(), indent=2) + "\n")
    if options.topic is not None:
        _publish(options, options.topic, found, result)
    return result


def _written(decided: DataFrame, verdict: int, path: str) -> DataFrame:
    """Rows of one verdict, once they are written there."""
    part = decided.where(sf.col("verdict") == verdict).drop("verdict")
    part.write.mode("overwrite").parquet(path)
    return decided.sparkSession.read.schema(FINDING).parquet(path)


def _result(
    options: AuditOptions,
    plan: Plan,
    counts: Mapping[str, int],
    found: DataFrame,
    unjudged: DataFrame,
    began_s: float,
) -> AuditResult:
    findings, sample = _by_kind(found), _sample(found)
    unknown, unknown_sample = _by_kind(unjudged), _sample(unjudged)
    seconds = time.monotonic() - began_s
    records = counts.get("sources", 0)
    return AuditResult(
        findings=findings,
        unjudged=unknown | _unserved(plan),
        judged=tuple(plan.judged_ranges),
        counts=counts,
        records=records,
        outputs=counts.get("outputs", 0),
        seconds=seconds,
        rows_per_s=records / seconds,
        findings_path=options.path("findings"),
        unjudged_path=options.path("unjudged"),
        summary_path=options.path("summary.json"),
        sample=sample,
        unjudged_sample=unknown_sample,
        cut=plan.cut,
        ranges=tuple(options.ranges),
    )


def _by_kind(found: DataFrame) -> dict[str, int]:
    rows = found.groupBy("kind").count().orderBy("kind").collect()
    return {row["kind"]: row["count"] for row in rows}


def _sample(found: DataFrame) -> tuple[Mapping[str, Any], ...]:
    rows = found.orderBy("topic", "partition", "offset").limit(SAMPLE_ROWS).collect()
    return tuple(row.asDict() for row in rows)


def _unserved(plan: Plan) -> dict[str, int]:
    """Return the number of offsets that can't be judged at all, by reason: no checkpoint covers
    them, or no offset of their shard has all its evidence.
    """
    cut = plan.cut
    unserved = sum(cut.unserved.values())
    found = {NO_CHECKPOINT: unserved} if unserved or not cut.shards else {}
    held = sum(shard.span.end - shard.span.start for shard in cut.shards)
    if held and not any(chosen.start < chosen.stop for chosen in plan.judged_ranges):
        found[NO_EVIDENCE] = held
    return found


def _sums(judged: DataFrame) -> dict[str, int]:
    """The counts of all tasks together."""
    sums = (
        judged.where(sf.col("verdict") == COUNT)
        .groupBy("kind")
        .agg(sf.sum("number").alias("number"))
    )
    return {row["kind"]: row["number"] for row in sums.orderBy("kind").collect()}


def _publish(options: AuditOptions, topic: str, found: DataFrame, result: AuditResult) -> None:
    """Write findings by the executors, then the summary: all findings are there before it."""
    columns = [sf.lit(VERSION).alias("v"), sf.lit("finding").alias("kind")]
    columns.append(sf.col("kind").alias("finding"))
    columns += [sf.col(name) for name in found.columns if name != "kind"]
    found.select(sf.to_json(sf.struct(*columns)).alias("value")).write.format("kafka").options(
        **java_options(options.client), topic=topic
    ).save()
    producer = producer_client(
        {name: value for name, value in options.client.items() if not name.startswith("java.")}
    )
    producer.produce(topic, json.dumps(result.to_json()).encode())
    if flush(producer, _FLUSH_TIMEOUT_S):
        raise KafkaEdgeError(
            f"the summary can't be written to {topic} within {_FLUSH_TIMEOUT_S:.0f} s; it is in "
            f"{result.summary_path}"
        )
