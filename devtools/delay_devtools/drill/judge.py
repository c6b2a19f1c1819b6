"""Compares the findings of Spark's jobs with the injected defects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

SHOWN_MAX: Final = 20

# Finding of a job: its world, then the fields of Found; or of a copy: kind, node, topic, partition,
# start of the hour or of what is damaged (None: the whole copy) and offset.
Finding: TypeAlias = tuple[object, ...]


class Found(NamedTuple):
    """Finding of the audit; ``output``: place of the output that it names."""

    kind: str
    topic: str
    partition: int
    offset: int
    output: tuple[str, int, int] | None


class Defect(NamedTuple):
    """Injected defect, and the findings that it must lead to."""

    kind: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class DrillVerdict:
    """Result of a drill: defects by kind, the findings that are missing, and those without a
    defect.
    """

    records: int
    injected: Mapping[str, int]
    found: Mapping[str, int]
    missed: Sequence[Finding]
    inventions: Sequence[Finding]
    seconds: Mapping[str, float]

    @property
    def is_good(self) -> bool:
        return not self.inventions and self.injected == self.found

    def to_json(self) -> dict[str, object]:
        seconds = sum(self.seconds.values())
        return {
            "injected": sum(self.injected.values()),
            "found": sum(self.found.values()),
            "invented": len(self.inventions),
            "seconds": round(seconds, 3),
            "rows_per_s": round(self.records / seconds) if seconds else 0,
            "records": self.records,
            "jobs": {name: round(took, 3) for name, took in self.seconds.items()},
            "kinds": {
                kind: {"injected": count, "found": self.found.get(kind, 0)}
                for kind, count in sorted(self.injected.items())
            },
            "missed": [list(finding) for finding in self.missed[:SHOWN_MAX]],
            "inventions": [list(finding) for finding in self.inventions[:SHOWN_MAX]],
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
        absent = [finding for finding in defect.findings if not left[finding]]
        left.subtract(finding for finding in defect.findings if finding not in absent)
        missed += absent
        found[defect.kind] += not absent
    injected = Counter(defect.kind for defect in defects)
    of_kinds = {kind: found[kind] for kind in injected}
    return DrillVerdict(records, injected, of_kinds, missed, [*(+left).elements()], seconds)
