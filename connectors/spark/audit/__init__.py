"""The delivery audit: holds what settles records against what the log demands."""

from connectors.spark.audit.findings import FINDING
from connectors.spark.audit.options import AuditOptions, OffsetRange
from connectors.spark.audit.result import AuditResult
from connectors.spark.audit.run import Following, audit, audit_at

__all__ = [
    "FINDING",
    "AuditOptions",
    "AuditResult",
    "Following",
    "OffsetRange",
    "audit",
    "audit_at",
]
