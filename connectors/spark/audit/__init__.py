"""The delivery audit: checks that each record has the one outcome that the logs demand."""

from connectors.spark.audit.frames import findings
from connectors.spark.audit.options import AuditOptions, AuditResult, OffsetRange
from connectors.spark.audit.run import Following, audit, audit_at, cut_of
from connectors.spark.audit.verdicts import FINDING

__all__ = [
    "FINDING",
    "AuditOptions",
    "AuditResult",
    "Following",
    "OffsetRange",
    "audit",
    "audit_at",
    "cut_of",
    "findings",
]
