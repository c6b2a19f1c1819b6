"""The delivery audit: every settled record has exactly one settlement, and that is as it should be.

One pass: source records and outputs become narrow rows (``audit_rows``), one shuffle brings those
of a record together (``audit_plan``), and each group is judged where it lies (``audit_verdicts``,
``judge``). Only where a record bears an id and its key is beyond K, its canceller is looked up in
a second pass (``audit_marks``). The driver sees counts and a few rows to show, never the data.
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
from connectors.spark.audit.plan import FINDING, OffsetRange, Plan, Scope
from connectors.spark.audit.verdicts import JUDGED
from connectors.spark.cut import Cut, take_cut
from connectors.spark.files import delete_folder, write_text
from connectors.spark.topics import java_options
from delayservice.core.contract import Contracts
from delayservice.core.targets import Allowlist
from delayservice.errors import KafkaEdgeError

__all__ = ["FINDING", "AuditOptions", "AuditResult", "OffsetRange", "audit", "audit_at"]

SAMPLE_ROWS: Final = 20
VERSION: Final = 1
"""Of what is written to ``AuditOptions.topic``."""
_FLUSH_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """What to audit and how.

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
        grace_ms: for ``at_least_once``: outputs younger than this may be ahead of the checkpoint.
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
        """What the plan needs to know of them."""
        return Scope(
            client=self.client,
            dead_letter=self.dead_letter,
            outcomes=self.outcomes,
            secrets=self.secrets,
            ranges=self.ranges,
            late_ms=self.late_ms,
            early_ms=self.early_ms,
            grace_ms=self.grace_ms,
        )

    def path(self, name: str) -> str:
        """Something in ``out``."""
        return f"{self.out.rstrip('/')}/{name}"


@dataclass(frozen=True, slots=True)
class AuditResult:
    """What an audit came to.

    Attributes:
        findings: how many of each kind; kinds without any are left out.
        counts: records by what became of them; ``docs/audit.md`` explains each.
        records: source records that were audited.
        outputs: what settles them, as far as it was read.
        seconds: for all of it, the cut included.
        rows_per_s: source records per second.
        findings_path: the Parquet dataset.
        summary_path: the JSON file.
        sample: the first findings, for people.
        cut: what it was judged at.
        ranges: of offsets that were audited; none: all.
    """

    findings: Mapping[str, int]
    counts: Mapping[str, int]
    records: int
    outputs: int
    seconds: float
    rows_per_s: float
    findings_path: str
    summary_path: str
    sample: tuple[Mapping[str, Any], ...]
    cut: Cut
    ranges: tuple[OffsetRange, ...]

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def to_json(self) -> dict[str, object]:
        """As ``summary.json`` holds it."""
        return {
            "v": VERSION,
            "kind": "summary",
            "at_ms": self.cut.taken_ms,
            "ranges": [[r.topic, r.partition, r.start, r.stop] for r in self.ranges],
            "clean": self.is_clean,
            "findings": dict(self.findings),
            "counts": dict(self.counts),
            "records": self.records,
            "outputs": self.outputs,
            "seconds": round(self.seconds, 3),
            "rows_per_s": round(self.rows_per_s),
            "findings_path": self.findings_path,
            "cut": self.cut.to_json(),
        }


def audit(spark: SparkSession, options: AuditOptions) -> AuditResult:
    """Audit a cluster as it is now.

    Raises:
        KafkaEdgeError: the cluster can't be read, or a topic that is named does not exist.
        DelayServiceError: a range is of no shard that is served.
    """
    began_s = time.monotonic()
    cut = take_cut(options.client, options.checkpoint, options.choose)
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
    work, path = options.path("judged"), options.path("findings")
    plan.judged().write.mode("overwrite").parquet(work)
    judged = spark.read.schema(JUDGED).parquet(work)
    plan.findings(judged).write.mode("overwrite").parquet(path)
    found = spark.read.schema(FINDING).parquet(path)
    result = _result(options, cut, _sums(judged), found, began_s)
    delete_folder(spark, work)
    write_text(spark, result.summary_path, json.dumps(result.to_json(), indent=2) + "\n")
    if options.topic is not None:
        _publish(options, options.topic, found, result)
    return result


def _result(
    options: AuditOptions, cut: Cut, counts: Mapping[str, int], found: DataFrame, began_s: float
) -> AuditResult:
    by_kind = found.groupBy("kind").count().orderBy("kind").collect()
    rows = found.orderBy("topic", "partition", "offset").limit(SAMPLE_ROWS).collect()
    seconds = time.monotonic() - began_s
    records = counts.get("sources", 0)
    return AuditResult(
        findings={row["kind"]: row["count"] for row in by_kind},
        counts=counts,
        records=records,
        outputs=counts.get("outputs", 0),
        seconds=seconds,
        rows_per_s=records / seconds,
        findings_path=options.path("findings"),
        summary_path=options.path("summary.json"),
        sample=tuple(row.asDict() for row in rows),
        cut=cut,
        ranges=tuple(options.ranges),
    )


def _sums(judged: DataFrame) -> dict[str, int]:
    """The counts of all tasks together."""
    sums = judged.where("number is not null").groupBy("kind").agg(sf.sum("number").alias("number"))
    return {row["kind"]: row["number"] for row in sums.orderBy("kind").collect()}


def _publish(options: AuditOptions, topic: str, found: DataFrame, result: AuditResult) -> None:
    """Findings by the executors, then the summary: whoever reads it has all findings before it."""
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
