"""Options by which tests audit a made history, or what a service did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from connectors.spark.audit import AuditOptions
from tests.integration.bench import Bench
from tests.spark.made_history import MadeHistory


def audit_options(of: MadeHistory | Bench, out: Path, **more: Any) -> AuditOptions:
    usual = AuditOptions(
        client={"bootstrap.servers": of.bootstrap},
        out=str(out),
        checkpoint=of.checkpoint,
        dead_letter=of.dead_letter,
        outcomes=of.outcomes,
        allow=(of.target_name("*"),),
    )
    return replace(usual, **more)
