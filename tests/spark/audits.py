"""Options by which tests audit a made history."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from connectors.spark.audit import AuditOptions
from tests.spark.made_history import MadeHistory


def audit_options(h: MadeHistory, out: Path, **more: Any) -> AuditOptions:
    usual = AuditOptions(
        client=h.client,
        out=str(out),
        checkpoint=h.checkpoint,
        dead_letter=h.dead_letter,
        outcomes=h.outcomes,
        allow=tuple(h.allow),
    )
    return replace(usual, **more)
