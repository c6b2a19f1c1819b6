"""Settings ``[levels]``: the level topics and their delays."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import ByteSize, Field, model_validator

from delayservice.config.units import (
    MIB,
    YEAR_MS,
    Bytes,
    DurationMs,
    ListText,
    Section,
    names_of,
)
from delayservice.contract.levels import PRESETS, level_topic

_LEVEL_MS_MIN = 100


class Levels(Section):
    """Level topics: each delays all its records by one fixed time. Its name is the prefix and a
    number from 1.
    """

    preset: Literal["none", "default", "rocketmq"] = Field(
        default="none",
        description="List of delays. `default`: 5s 10s 30s 1m 2m 5m 10m 20m 30m 45m 1h 2h. "
        "`rocketmq`: the 18 of RocketMQ. `none`: `delays_ms`.",
    )
    delays_ms: Annotated[
        tuple[Annotated[DurationMs, Field(ge=_LEVEL_MS_MIN, le=YEAR_MS)], ...], ListText
    ] = Field(
        default=(),
        max_length=100,
        description="Delays of the levels, ascending, instead of `preset`. Add new ones at the "
        "end. Empty: no levels.",
    )
    prefix: Annotated[str, names_of(1, 240)] = Field(
        default="delay_topic_",
        description="Prefix of level topics; level 3 of the default is `delay_topic_3`.",
    )
    fetch_ahead_records: int = Field(
        default=5_000,
        ge=10,
        le=1_000_000,
        description="Records of a partition that are held in memory before they are due. Larger: "
        "more memory, faster bursts.",
    )
    fetch_ahead_bytes: Bytes = Field(
        default=ByteSize(8 * MIB),
        description="Bytes of keys, values and headers of a partition that are held in memory "
        "before they are due: the second limit beside `fetch_ahead_records`.",
    )

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if self.preset != "none" and self.delays_ms:
            raise ValueError("set preset or delays_ms, not both")
        if any(a >= b for a, b in pairwise(self.delays_ms)):
            raise ValueError("delays_ms must ascend: level 2 waits longer than level 1")
        return self

    @property
    def all_ms(self) -> tuple[int, ...]:
        # Ascending: level 1 has the first.
        return PRESETS.get(self.preset, self.delays_ms)

    @property
    def by_topic(self) -> dict[str, int]:
        levels = enumerate(self.all_ms, start=1)
        return {level_topic(level, self.prefix): level_ms for level, level_ms in levels}
