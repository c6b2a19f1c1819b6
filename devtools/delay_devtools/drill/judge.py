"""Compare the findings of Spark's jobs with the injected defects.

Each finding belongs to a world, what a job examines: ``topics`` (audit at the end), ``follow``
(audits while the history is written), ``disks`` or ``digests`` (comparisons of copies).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from delay_devtools.drill.stage import Defect

SHOWN_MAX: Final = 20
"""Largest number of missed findings that a verdict contains, and of findings without a defect."""

Finding = tuple[object, ...]
"""Finding of a job: first its world, then the fields of ``stage.Found`` or
``replicas.CopyFound``.
"""


@dataclass(frozen=True, slots=True)
class DrillVerdict:
    """Result of a drill.

    Attributes:
        records: number of producers' records.
        injected: number of injected defects, by kind.
        found: number of defects all of whose expected findings were reported, by kind.
        invented: number of findings without a defect.
        missed: first expected findings that are missing, ``SHOWN_MAX`` at most.
        inventions: first findings without a defect, ``SHOWN_MAX`` at most.
        seconds: durations of the jobs in s, by name.
    """

    records: int
    injected: Mapping[str, int]
    found: Mapping[str, int]
    invented: int
    missed: tuple[Finding, ...]
    inventions: tuple[Finding, ...]
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        """Return whether all defects were found, without other findings."""
        return self.invented == 0 and self.injected == self.found

    def to_json(self) -> dict[str, object]:
        """Return the verdict as a JSON object."""
        seconds = sum(self.seconds.values())
        return {
            "injected": sum(self.injected.values()),
            "found": sum(self.found.values()),
            "invented": self.invented,
            "seconds": round(seconds, 3),
            "rows_per_s": round(self.records / seconds) if seconds else 0,
            "records": self.records,
            "jobs": {name: round(took, 3) for name, took in self.seconds.items()},
            "kinds": {
                kind: {"injected": count, "found": self.found.get(kind, 0)}
                for kind, count in sorted(self.injected.items())
            },
            "missed": [list(finding) for finding in self.missed],
            "inventions": [list(finding) for finding in self.inventions],
        }


def judge(
    defects: Sequence[Defect],
    findings: Iterable[Finding],
    records: int,
    seconds: Mapping[str, float],
) -> DrillVerdict:
    """Return the verdict of a drill on the findings.

    Args:
        defects: injected defects.
        findings: findings of the jobs; a second equal one counts as a finding without a defect.
        records: number of producers' records.
        seconds: durations of the jobs in s, by name.
    """
    left = Counter(findings)
    missed: list[Finding] = []
    found: Counter[str] = Counter()
    for defect in defects:
        wanted = [(world, *one) for world in defect.worlds for one in defect.findings]
        absent = [finding for finding in wanted if not left[finding]]
        left.subtract(finding for finding in wanted if finding not in absent)
        missed += absent
        found[defect.kind] += not absent
    injected = Counter(defect.kind for defect in defects)
    inventions = +left
    return DrillVerdict(
        records=records,
        injected=injected,
        found={kind: found[kind] for kind in injected},
        invented=inventions.total(),
        missed=tuple(missed[:SHOWN_MAX]),
        inventions=tuple(list(inventions.elements())[:SHOWN_MAX]),
        seconds=seconds,
    )
