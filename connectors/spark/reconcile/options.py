"""Options and result of a comparison of copies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from connectors.spark.common.session import exit_status
from connectors.spark.reconcile.compare import FINDINGS_VERSION
from connectors.spark.reconcile.digests import Comparison, Expected
from connectors.spark.reconcile.repair_plan import Copy, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileOptions:
    """Options of a comparison of copies.

    Attributes:
        client: options of librdkafka, at least ``bootstrap.servers``.
        out: folder or URL for the results, as Spark names it; its content is replaced.
        checkpoint: the service's checkpoint topic.
        digests: the service's digest topic.
        repairs: the service's repair topic.
        folders: nodes' state folders by name of the node, to compare copies on disks; empty:
            compare running nodes by their digests.
        expected: copies that should exist.
        deep: whether to compare every hour with the delay topics, not only those that differ
            between copies, and to ask running nodes for records with ids, as digests cover only
            their ids.
        details: whether to ask running nodes for the records of hours that differ from the log.
        secrets: cluster secrets, to detect forged requeued records; empty: all count as genuine.
        behind_records: number of records up to H that a copy on a disk may lack before it counts as
            behind.
        answer_timeout_s: longest wait, in seconds, for nodes to tell the records of some hours.
        min_partitions: smallest number of tasks that read a topic.
        topic: topic to which findings and a summary are written; None: no topic.
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
    topic: str | None = None

    def path(self, name: str) -> str:
        return f"{self.out.rstrip('/')}/{name}"


@dataclass(slots=True)
class Counts:
    """Numbers of records and offsets in a comparison.

    Attributes:
        passed: findings that are left out, because K passed them meanwhile.
        log_offsets: source offsets of the delay topics that were read to compare with the log.
        pending: the sum over all shards, each counted in the copy that has most.
        records: pending records that were compared with another copy or with the log.
        unjudged: records of copies with offsets below the start of the log, in the hours compared
            record by record. The log can't judge them, so they are no findings.
        uncompared: shards of which no copy was compared with another copy or with the log.
    """

    passed: int = 0
    log_offsets: int = 0
    pending: int = 0
    records: int = 0
    unjudged: int = 0
    uncompared: int = 0

    def add(self, compared: Iterable[Comparison], unserved: int, *, is_deep: bool) -> None:
        least = 1 if is_deep else 2
        self.uncompared = unserved
        for one in compared:
            self.pending += one.pending
            if len(one.nodes) >= least:
                self.records += one.records
            else:
                self.uncompared += 1

    def notes(self) -> list[str]:
        why = {
            "shards have no second copy that could be compared; --deep compares one copy with the "
            "delay topic": self.uncompared,
            "records in hours that differ lie below the start of their delay topic: retention has "
            "deleted them there, so the log can't judge them; they are left as are": self.unjudged,
        }
        return [f"{count:,} {what}" for what, count in why.items() if count]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileResult:
    """The result of a comparison.

    Attributes:
        findings: number of findings by kind; kinds without any are left out.
        read_s: time at which reading the copies began, monotonic seconds.
        paths: paths of the results by name: ``findings``, ``summary``, ``plan`` and ``report``.
        sample: the first findings, for display, at most ``run.SAMPLE_ROWS``.
        right: copies that were compared and have no findings.
    """

    findings: Mapping[str, int]
    counts: Counts
    seconds: float
    read_s: float
    paths: Mapping[str, str]
    plan: Plan
    sample: tuple[Mapping[str, Any], ...]
    compared: tuple[Comparison, ...]
    right: frozenset[Copy]
    notes: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        return self.status == 0

    @property
    def status(self) -> int:
        left = self.counts.uncompared + self.counts.unjudged
        return exit_status(len(self.findings), left if self.compared else 1)

    @property
    def extent(self) -> str:
        """How much was compared, as a part of a sentence."""
        counts, shards = self.counts, len(self.compared)
        return (
            f"{max(0, shards - counts.uncompared):,} of {shards:,} shards, {counts.records:,} of "
            f"{counts.pending:,} pending records compared"
        )

    def to_json(self) -> dict[str, object]:
        return {
            "v": FINDINGS_VERSION,
            "kind": "reconcile",
            "at_ms": self.plan.made_ms,
            "clean": self.is_clean,
            "findings": dict(self.findings),
            **asdict(self.counts),
            "seconds": round(self.seconds, 3),
            **{f"{name}_path": path for name, path in self.paths.items()},
            "plan_id": self.plan.id,
            "steps": len(self.plan.steps),
            "shards": [one.to_json() for one in self.compared],
            "notes": list(self.notes),
        }
