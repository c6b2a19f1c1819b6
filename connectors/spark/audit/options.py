"""Options and result of an audit."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors.spark.audit.evidence import Strictness
from connectors.spark.audit.rules import CLOCKS_MS
from connectors.spark.audit.verdicts import FINDING
from connectors.spark.common.cut import Cut
from connectors.spark.common.session import exit_status
from connectors.spark.common.topics import Place
from delayservice.base.errors import KafkaEdgeError
from delayservice.contract.entry import OFFSET_MAX
from delayservice.contract.targets import Allowlist


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Source offsets of one shard (partition of a delay topic), ``stop`` exclusive."""

    topic: str
    partition: int
    start: int = 0
    stop: int = OFFSET_MAX

    @property
    def place(self) -> Place:
        return self.topic, self.partition


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """Options of an audit.

    Attributes:
        client: options of librdkafka, at least ``bootstrap.servers``.
        out: folder or URL for the results, as Spark names it. ``audit`` replaces results that are
            there; ``Following`` adds to them.
        checkpoint: the service's checkpoint topic.
        dead_letter: the service's dead-letter topic.
        outcomes: the service's outcome topic.
        targets: target topics to read; empty: every topic that ``allow`` allows.
        allow: target patterns of the nodes' settings; None: unknown, so every topic that may be a
            target is read. Deliveries to topics that are not read can't be checked.
        all_topics: whether to read every topic of the cluster except Kafka's own, whether or not it
            is allowed as a target.
        never: further topics of the service that hold no outputs, to be left out.
        secrets: cluster secrets, to detect forged requeued records; empty: requeued records count
            as genuine, except those that the service refused.
        late_ms: largest lateness of a delivery that is not reported, in ms; None: no limit.
        early_ms: largest time before the due time by which a delivery is not reported, in ms; at
            least ``clock_tolerance_ms`` where the broker sets the target's timestamps.
        grace_ms: for ``at_least_once``, in ms: outputs younger than this may be missing in the
            checkpoint, and a delivery may be repeated within this time after a crash.
        overdue_ms: longest time after the due time for which a pending record is not reported, in
            ms; None: no limit.
        lag_ms: allowed time, in ms, until H passes a new record while records are delivered on
            time: a cancel written longer than this before a record is due wins.
        clock_tolerance_ms: the nodes' ``delivery.clock_tolerance_ms``; less than 500 counts as 500.
        delay_topics: delay topics that should be in the checkpoints, if they exist.
        ranges: source offsets for which a single audit reports findings; empty: all offsets.
        topic: topic to which findings and a summary are written; None: no topic.
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
    clock_tolerance_ms: int = CLOCKS_MS
    delay_topics: tuple[str, ...] = ()
    ranges: tuple[OffsetRange, ...] = ()
    topic: str | None = None

    def choose(self, topics: Collection[str]) -> set[str]:
        """Return the topics to read besides the delay topics, chosen from all ``topics`` of the
        cluster: the dead-letter topic, the outcome topic, and target topics as the options say.

        Raises:
            KafkaEdgeError: the dead-letter topic, the outcome topic, a named target or the topic
                for results does not exist.
        """
        needed = {self.dead_letter, self.outcomes, *self.targets}
        published = set() if self.topic is None else {self.topic}
        missing = sorted((needed | published) - set(topics))
        if missing:
            raise KafkaEdgeError(
                f"there is no topic {', '.join(missing)}: name dead letters and outcomes as the "
                "service's settings topics.dead_letter and topics.outcomes do, and targets and a "
                "topic for results that exist"
            )
        never = {self.checkpoint, f"{self.checkpoint}_claims", self.topic, *self.never}
        if self.all_topics:
            return needed | {t for t in topics if not t.startswith("__") and t not in never}
        return needed if self.targets else needed | (self._allowed(topics) - never)

    def _allowed(self, topics: Collection[str]) -> set[str]:
        allowlist = Allowlist("", ["*"] if self.allow is None else self.allow)
        return {topic for topic in topics if allowlist.denial(topic) is None}

    @property
    def strictness(self) -> Strictness:
        limits = (self.late_ms, self.early_ms, self.grace_ms, self.overdue_ms, self.lag_ms)
        return Strictness(*limits, self.clock_tolerance_ms)

    def path(self, name: str) -> str:
        return f"{self.out.rstrip('/')}/{name}"


SAMPLE_ROWS: Final = 20
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The result of an audit.

    Attributes:
        findings: number of findings by kind; kinds without findings are left out.
        unjudged: number of records or offsets that could not be judged, by reason.
        judged: offset ranges that the verdict is for.
        counts: number of records by what became of them; ``docs/internals/audit-method.md``
            explains each name.
        records: number of source records that were audited.
        outputs: number of outputs that were read and settle a record.
        seconds: duration of the audit and of taking the cut.
        findings_path, unjudged_path: Parquet datasets.
        summary_path: path of the JSON summary.
        sample, unjudged_sample: the first rows of both, for display, at most ``SAMPLE_ROWS``.
        cut: offsets and cursors at which the audit judged.
        ranges: offset ranges requested by the user; empty: all offsets.
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
        """Whether there are neither findings nor unjudged records."""
        return not self.findings and not self.unjudged

    @property
    def status(self) -> int:
        """Exit status of the audit command: 3 findings, 4 only unjudged records, 0 otherwise."""
        return exit_status(len(self.findings), len(self.unjudged))

    def findings_df(self, spark: SparkSession) -> DataFrame:
        """Return the findings, columns ``verdicts.FINDING``, with the timestamps ``due_at`` and
        ``written_at``.
        """
        return _with_timestamps(spark.read.schema(FINDING).parquet(self.findings_path))

    def unjudged_df(self, spark: SparkSession) -> DataFrame:
        """As ``findings_df``, for what could not be judged; ``kind`` is the reason."""
        return _with_timestamps(spark.read.schema(FINDING).parquet(self.unjudged_path))

    def _repr_html_(self) -> str:
        told = [("findings", k, n) for k, n in self.findings.items()]
        told += [("not judged", k, n) for k, n in self.unjudged.items()]
        told += [("counts", k, n) for k, n in self.counts.items()]
        rows = "".join(
            f"<tr><td>{what}</td><td>{escape(kind)}</td><td align=right>{count:,}</td></tr>"
            for what, kind, count in told
        )
        verdict = "clean" if self.is_clean else "not clean"
        return (
            f"<p>Audit of {self.records:,} records in {self.seconds:.1f} s: <b>{verdict}</b></p>"
            f"<table>{rows}</table>"
        )

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


def _with_timestamps(found: DataFrame) -> DataFrame:
    times = {"due_at": "due_ms", "written_at": "at_ms"}
    return found.withColumns({name: sf.timestamp_millis(ms) for name, ms in times.items()})
