"""The delivery audit: holds what settles records against what the log demands."""

from connectors.spark.audit.plan import FINDING, OffsetRange
from connectors.spark.audit.run import AuditOptions, AuditResult, audit, audit_at

__all__ = ["FINDING", "AuditOptions", "AuditResult", "OffsetRange", "audit", "audit_at"]
