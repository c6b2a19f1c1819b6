"""When a flush counts as stalled: a busy broker is waited for, a silent one is not."""

from __future__ import annotations

from connectors.kafka.delivery_reports import Stall


def test_a_flush_that_moves_on_is_not_stalled_however_long_it_takes() -> None:
    stall = Stall(100, 10.0)
    assert [stall.seconds(100 - n, 10.0 + 2.5 * n, 0.0) for n in (1, 2, 3, 4)] == [0.0] * 4


def test_a_flush_of_which_nothing_more_is_acknowledged_is_stalled_since_then() -> None:
    stall = Stall(100, 10.0)
    assert stall.seconds(40, 11.0, 0.0) == 0.0
    assert stall.seconds(40, 14.5, 0.0) == 3.5


def test_a_flush_that_was_never_answered_is_stalled_since_it_began() -> None:
    assert Stall(5, 10.0).seconds(5, 13.5, 0.0) == 3.5


def test_the_wait_that_a_quota_asks_for_does_not_count() -> None:
    assert Stall(5, 10.0).seconds(5, 13.5, 13.0) == 0.5
    assert Stall(5, 10.0).seconds(5, 13.5, 20.0) < 0
