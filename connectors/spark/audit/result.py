"""The result of an audit, and the exit status of its command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from connectors.spark.audit.options import OffsetRange
from connectors.spark.common.cut import Cut
from connectors.spark.common.failures import exit_status

SAMPLE_ROWS: Final = 20
VERSION: Final = 1
"""Version of the format of findings and summaries."""


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
        seconds: duration of the audit and of taking the cut, in seconds.
        rows_per_s: number of source records audited per second.
        findings_path: path of the Parquet dataset of findings.
        unjudged_path: path of the Parquet dataset of records that could not be judged.
        summary_path: path of the JSON summary.
        sample: the first findings, for display, at most ``SAMPLE_ROWS``.
        unjudged_sample: the first records that could not be judged, at most ``SAMPLE_ROWS``.
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

    def to_json(self) -> dict[str, object]:
        """Return the result as the content of ``summary.json``, ready for a JSON encoder."""
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
