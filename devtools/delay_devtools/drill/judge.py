"""Compares the findings of Spark's jobs with the injected defects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from delay_devtools.drill.stage import Defect

SHOWN_MAX: Final = 20

# Finding of a job: first its world, then the fields of stage.Found or replicas.CopyFound.
Finding = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class DrillVerdict:
    """Result of a drill, by kind; ``missed`` and ``inventions`` have ``SHOWN_MAX``
    entries at most.
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
        return self.invented == 0 and self.injected == self.found

    def to_json(self) -> dict[str, object]:
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
    # A second equal finding counts as a finding without a defect.
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
