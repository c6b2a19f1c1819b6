"""How many offsets a log is expected to grow by, from the records that were read of it."""

from __future__ import annotations

from delayservice.engine.pacing import AHEAD_MS, Growth

NOW_MS = 1_900_000_000_000


def steady(per_s: int, until_ms: int = NOW_MS, seconds: int = 60) -> Growth:
    """A log that has grown evenly for a while, read in runs of 10 ms."""
    growth = Growth()
    for step in range(seconds * 100 + 1):
        growth.note(step * per_s // 100, until_ms - seconds * 1_000 + step * 10)
    return growth


def test_a_log_of_which_nothing_was_read_gives_no_reason_to_wait() -> None:
    assert Growth().offsets_ahead(1_000_000, NOW_MS) == 0


def test_a_log_that_grows_evenly_is_expected_to_go_on() -> None:
    expected = steady(per_s=2_000).offsets_ahead(120_000, NOW_MS)
    assert 0.85 * 2 * AHEAD_MS <= expected <= 2 * AHEAD_MS


def test_a_log_that_rests_is_expected_to_rest() -> None:
    growth = steady(per_s=2_000, until_ms=NOW_MS - 3_600_000)
    assert growth.offsets_ahead(120_001, NOW_MS) == 0


def test_a_burst_counts_as_what_came_of_it_so_far() -> None:
    growth = Growth()
    growth.note(0, NOW_MS - 10)
    assert growth.offsets_ahead(500, NOW_MS) == 500


def test_a_short_burst_that_is_over_and_was_read_whole_is_not_expected_again() -> None:
    growth = Growth()
    growth.note(0, NOW_MS - 13_000)
    growth.note(49, NOW_MS - 12_900)
    assert growth.offsets_ahead(50, NOW_MS) == 0


def test_unread_records_count_as_spread_evenly_since_the_last_read() -> None:
    growth = steady(per_s=100, until_ms=NOW_MS - 4 * AHEAD_MS)
    assert growth.offsets_ahead(6_000 + 4 * AHEAD_MS, NOW_MS) == AHEAD_MS


def test_a_log_that_is_read_again_or_has_lost_its_end_is_not_expected_to_shrink() -> None:
    growth = steady(per_s=100)
    growth.note(0, NOW_MS - 60_000)
    assert growth.offsets_ahead(10, NOW_MS) == 0


def test_a_clock_behind_the_brokers_changes_little() -> None:
    growth = steady(per_s=1_000)
    assert 0 < growth.offsets_ahead(60_000, NOW_MS - 500) <= AHEAD_MS + 500
