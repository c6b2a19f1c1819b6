"""Which level waits long enough."""

from __future__ import annotations

import pytest

from delayservice.base.errors import DelayServiceError
from delayservice.contract.levels import (
    DEFAULT_LEVELS_MS,
    PRESETS,
    ROCKETMQ_LEVELS_MS,
    level_of,
    level_topic,
)


@pytest.mark.parametrize(
    ("delay_ms", "level"),
    [(0, 1), (5_000, 1), (5_001, 2), (30_000, 3), (7_200_000, 12), (7_200_001, 12), (2**60, 12)],
)
def test_a_delay_goes_to_the_next_level_up_and_to_the_last_one_at_most(
    delay_ms: int, level: int
) -> None:
    assert level_of(delay_ms, DEFAULT_LEVELS_MS) == level


def test_no_level_lies_in_the_past() -> None:
    with pytest.raises(DelayServiceError, match="-1"):
        level_of(-1, DEFAULT_LEVELS_MS)


@pytest.mark.parametrize("levels_ms", PRESETS.values())
def test_presets_ascend(levels_ms: tuple[int, ...]) -> None:
    assert list(levels_ms) == sorted(set(levels_ms))


def test_rocketmq_has_eighteen() -> None:
    assert len(ROCKETMQ_LEVELS_MS) == 18
    assert level_topic(18) == "delay_topic_18"
