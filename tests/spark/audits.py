"""Options by which tests audit a made history, and what a service writes beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from connectors.spark.audit import AuditOptions
from delayservice.contract.codec import Payload
from delayservice.contract.requeue import write_copy
from tests.spark.made_history import Header, MadeHistory


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


def requeued(h: MadeHistory, settles: int, due_ms: int, secret: bytes) -> list[Header]:
    """The headers of a requeued record without an id, signed by ``secret``."""
    origin = f"{h.delay}:0:{settles}".encode()
    payload: Payload = (h.target, -1, None, b"value", [], due_ms, (None, origin, 1, None))
    _, _, headers = write_copy(
        *(h.delay, 0, secret),
        settles=settles,
        source=origin,
        base=settles + 1,
        at_ms=due_ms,
        payload=payload,
    )
    return [(name, value or b"") for name, value in headers]
