"""The delivery audit: compares the settlements of records with what the log demands."""

from connectors.spark.audit.frames import findings
from connectors.spark.audit.options import AuditOptions, OffsetRange
from connectors.spark.audit.result import AuditResult
from connectors.spark.audit.run import Following, audit, audit_at
from connectors.spark.audit.verdicts import FINDING

__all__ = [
    "FINDING",
    "AuditOptions",
    "AuditResult",
    "Following",
    "OffsetRange",
    "audit",
    "audit_at",
    "findings",
]
