"""Fixed delays by number: those of level topics, and those of RocketMQ's ``DELAY`` header.

Level n, counted from 1, is the n-th of an ascending tuple of delays in milliseconds. Its topic is
``level_topic(n)``. All of its records wait equally long, so they lie in the order of due times.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final

from delayservice.base.errors import DelayServiceError

_S: Final = 1_000
_MINUTE: Final = 60 * _S

DEFAULT_LEVELS_MS: Final[tuple[int, ...]] = (
    5 * _S,
    10 * _S,
    30 * _S,
    *(minutes * _MINUTE for minutes in (1, 2, 5, 10, 20, 30, 45, 60, 120)),
)
"""Twelve levels, ms: 5s 10s 30s 1m 2m 5m 10m 20m 30m 45m 1h 2h."""

ROCKETMQ_LEVELS_MS: Final[tuple[int, ...]] = (
    *(seconds * _S for seconds in (1, 5, 10, 30)),
    *(minutes * _MINUTE for minutes in (*range(1, 11), 20, 30, 60, 120)),
)
"""RocketMQ's default ``messageDelayLevel``, ms: 1s 5s 10s 30s 1m…10m 20m 30m 1h 2h."""

# By the preset's name in the configuration.
PRESETS: Final[Mapping[str, tuple[int, ...]]] = {
    "default": DEFAULT_LEVELS_MS,
    "rocketmq": ROCKETMQ_LEVELS_MS,
}


def level_of(delay_ms: int, levels_ms: Sequence[int]) -> int:
    """Return the number, from 1, of the first level of at least ``delay_ms``, else the last, as
    RocketMQ does. ``levels_ms`` ascends. Raise ``DelayServiceError`` for a negative delay.
    """
    if delay_ms < 0:
        raise DelayServiceError(f"a delay is 0 ms or more, not {delay_ms}")
    return min(bisect_left(levels_ms, delay_ms) + 1, len(levels_ms))


def level_topic(level: int, prefix: str = "delay_topic_") -> str:
    return f"{prefix}{level}"
