"""Settings of delivery rates and of the limits of disk use."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from delayservice.config.units import Section, TopicPattern
from delayservice.engine.disk import Watermarks

RatePerS = Annotated[int, Field(ge=0, le=10_000_000)]


class Rates(Section):
    """Limits of the rate at which target topics get records, for the whole cluster."""

    per_s: dict[TopicPattern, RatePerS] = Field(
        default_factory=dict,
        max_length=1_000,
        description="Records per second by pattern of target topics (`*` and `?`). The first "
        "pattern that matches counts; each slice has an equal share. 0: no limit.",
    )


class Disk(Section):
    """Reactions to a full disk under `node.state_dir`. Delivery never stops."""

    warn_percent: float = Field(
        default=75,
        ge=1,
        le=100,
        description="Used percent of the disk from which a warning is logged.",
    )
    stop_percent: float = Field(
        default=85,
        ge=1,
        le=100,
        description="Used percent of the disk from which new records stay in Kafka, unstored, "
        "with an alarm.",
    )
    full_percent: float = Field(
        default=90,
        ge=1,
        le=100,
        description="Used percent of the disk from which stores are no longer synced; after a "
        "crash, more is read again from Kafka.",
    )
    resume_below_percent: float = Field(
        default=2,
        ge=0,
        le=50,
        description="Percentage points below one of these limits at which its reaction ends.",
    )

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if not self.warn_percent <= self.stop_percent <= self.full_percent:
            raise ValueError("warn_percent, stop_percent and full_percent must ascend")
        return self

    @property
    def watermarks(self) -> Watermarks:
        return Watermarks(
            self.warn_percent, self.stop_percent, self.full_percent, self.resume_below_percent
        )
