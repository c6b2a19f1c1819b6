"""Digests of the stored copies, as settings."""

from __future__ import annotations

from pydantic import Field

from delayservice.config.units import DAY_MS, DurationMs, Section


class Digests(Section):
    """Counts and hashes of the pending records of each minute, by which copies are compared."""

    enabled: bool = Field(
        default=True,
        description="Keep digests and write them to `topics.digests`. `false`: no comparison of "
        "copies, no figures by target.",
    )
    interval_ms: DurationMs = Field(
        default=60_000,
        ge=1_000,
        le=DAY_MS,
        description="Time between two digests of a busy slice; the same on every node. Smaller: "
        "fresher comparisons, more writes.",
    )
    scan_interval_ms: DurationMs = Field(
        default=DAY_MS,
        ge=60_000,
        le=366 * DAY_MS,
        description="Time in which each copy is read from disk once to find damage. Smaller: "
        "earlier detection, more reads.",
    )
