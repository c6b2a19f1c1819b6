"""Limits of delivery and of the disk, as settings."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from delayservice.config.units import Section, TopicPattern
from delayservice.engine.disk import Watermarks

RatePerS = Annotated[int, Field(ge=0, le=10_000_000)]


class Rates(Section):
    """How many records a target topic may get each second, from the whole cluster."""

    per_s: dict[TopicPattern, RatePerS] = Field(
        default_factory=dict,
        max_length=1_000,
        description="Records per second by pattern of target topics (`*` and `?`); the first that "
        "matches counts, 0 is no limit. Each slice has an equal share.",
    )


class Disk(Section):
    """What is still done while the disk of `node.state_dir` fills up; delivery goes on."""

    warn_percent: float = Field(default=75, ge=1, le=100, description="Say so.")
    stop_percent: float = Field(
        default=85,
        ge=1,
        le=100,
        description="Store nothing more, and raise an alarm; Kafka keeps what is not stored.",
    )
    full_percent: float = Field(
        default=90, ge=1, le=100, description="Write nothing that can wait: no periodic syncs."
    )
    resume_below_percent: float = Field(
        default=2, ge=0, le=50, description="How far below a mark its end is."
    )

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if not self.warn_percent <= self.stop_percent <= self.full_percent:
            raise ValueError("warn_percent, stop_percent and full_percent must ascend")
        return self

    @property
    def watermarks(self) -> Watermarks:
        """The same for ``core.disk``."""
        return Watermarks(
            self.warn_percent, self.stop_percent, self.full_percent, self.resume_below_percent
        )
