"""The result of a comparison: findings by kind, numbers, and where they are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from connectors.spark.reconcile.compare import FINDINGS_VERSION
from connectors.spark.reconcile.digests import Comparison
from connectors.spark.reconcile.plan import Copy, Plan


@dataclass(slots=True)
class Counts:
    """Numbers of a comparison.

    Attributes:
        slot_rows: rows of digests that were read: one for each slot of a copy; 0 on disks.
        slots_differing: slots that were held against the log.
        slots_passed: of those that are wrong, how many K passed meanwhile: what was found there is
            left out.
        log_offsets: offsets of the delay topics that were read.
        pending: records that wait, by the copies that have the most.
        records: of these, those that were compared with another copy or the log.
        unjudged: records of copies in slots that differ from the log, below its start: they are no
            findings, for they can't be judged.
    """

    slot_rows: int = 0
    slots_differing: int = 0
    slots_passed: int = 0
    log_offsets: int = 0
    pending: int = 0
    records: int = 0
    unjudged: int = 0

    def notes(self) -> list[str]:
        """For people: what could not be judged."""
        said = "records in slots that differ lie below the start of their delay topic"
        why = "retention has deleted them there, so the log can't judge them; they are left as are"
        return [f"{self.unjudged} {said}: {why}"] if self.unjudged else []


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileResult:
    """The result of a comparison.

    Attributes:
        findings: how many of each kind; kinds without any are left out.
        read_s: when the copies were read, by the monotonic clock.
        paths: of ``findings``, ``summary``, ``plan`` and ``report``.
        sample: the first findings, for people.
        compared: every shard, with what was compared.
        wrong: copies with any finding.
    """

    findings: Mapping[str, int]
    counts: Counts
    seconds: float
    read_s: float
    paths: Mapping[str, str]
    plan: Plan
    sample: tuple[Mapping[str, Any], ...]
    compared: tuple[Comparison, ...]
    wrong: frozenset[Copy]
    notes: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        """Return whether nothing was found."""
        return not self.findings

    def to_json(self) -> dict[str, object]:
        """Return the content of ``summary.json``."""
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
