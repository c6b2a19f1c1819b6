"""Digests of the stored copies, as settings."""

from __future__ import annotations

from pydantic import Field

from delayservice.config.units import DAY_MS, DurationMs, Section


class Digests(Section):
    """How copies are made comparable: counts and hashes of what is pending, minute by minute."""

    enabled: bool = Field(default=True, description="Keep digests, and write them to a topic.")
    interval_ms: DurationMs = Field(
        default=60_000,
        ge=1_000,
        le=DAY_MS,
        description="How often a busy slice's copies write theirs. The same on every node: they "
        "are compared where they speak of the same checkpoint.",
    )
    scan_interval_ms: DurationMs = Field(
        default=DAY_MS,
        ge=60_000,
        le=366 * DAY_MS,
        description="How often a copy is read again from the disk, to find damage before it is "
        "due.",
    )
