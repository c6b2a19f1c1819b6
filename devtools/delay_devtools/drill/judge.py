"""Compare the findings of the jobs with the injected defects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from delay_devtools.drill.stage import Defect

SHOWN_MAX: Final = 20
"""Largest number of missed and of invented findings that are reported."""

Finding = tuple[object, ...]
"""World of a job (``topics``, ``follow``, ``disks`` or ``digests``), then what it found."""


@dataclass(frozen=True, slots=True)
class DrillVerdict:
    """Result of a drill.

    Attributes:
        records: what producers wrote.
        injected: defects of each kind.
        found: of those, how many were found with every offset that they concern.
        invented: findings that no defect leads to.
        missed: some findings that should be there.
        inventions: some that should not.
        seconds: of the jobs, by name.
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
        """Return whether all was found and nothing invented."""
        return self.invented == 0 and self.injected == self.found

    def to_json(self) -> dict[str, object]:
        """Return the verdict for programs."""
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
    """Compare.

    Args:
        defects: what was injected.
        findings: what was found; one that is there twice is invented once.
        records: what producers wrote.
        seconds: of the jobs, by name.
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
