"""How far behind a copy is, told from the checkpoints that it has passed."""

from __future__ import annotations

import math

from delayservice.engine.electability import Lag


def test_nobody_knows_before_a_checkpoint_was_heard() -> None:
    assert math.isinf(Lag().lag_s({"t": 5}, 10))


def test_a_slice_that_was_never_served_has_nothing_to_be_behind_of() -> None:
    lag = Lag()
    lag.never_served(10)
    assert lag.lag_s({"t": 0}, 11) == 0


def test_a_copy_that_has_everything_is_not_behind() -> None:
    lag = Lag()
    lag.heard({"t": 5}, 10)
    assert lag.lag_s({"t": 5}, 20) == 0


def test_a_copy_that_has_never_caught_up_is_infinitely_behind() -> None:
    lag = Lag()
    lag.heard({"t": 5}, 10)
    assert math.isinf(lag.lag_s({"t": 4}, 11))


def test_a_copy_is_behind_by_the_age_of_the_newest_checkpoint_that_it_has_passed() -> None:
    lag = Lag()
    lag.heard({"t": 5}, 10)
    lag.heard({"t": 9}, 12)
    assert lag.lag_s({"t": 6}, 13) == 3  # it has that of 10, not that of 12
    assert lag.lag_s({"t": 8}, 14) == 4  # the goal is the one of 12 now


def test_under_load_a_copy_that_keeps_up_stays_a_little_behind() -> None:
    lag = Lag()
    for second in range(100):
        lag.heard({"t": 10 * second}, second)
        late_s = lag.lag_s({"t": 10 * second - 5}, second)
    assert late_s <= 2


def test_a_copy_that_stands_still_falls_behind() -> None:
    lag = Lag()
    lag.heard({"t": 5}, 10)
    assert lag.lag_s({"t": 5}, 10) == 0
    lag.heard({"t": 6}, 11)
    assert lag.lag_s({"t": 5}, 40) == 30


def test_a_wiped_copy_is_behind_until_it_has_caught_up_again() -> None:
    lag = Lag()
    lag.heard({"t": 5}, 10)
    assert lag.lag_s({"t": 5}, 10) == 0
    assert math.isinf(lag.lag_s({"t": 0}, 11))
    assert lag.lag_s({"t": 5}, 12) == 0


def test_every_shard_counts_that_is_served_here_and_no_other() -> None:
    lag = Lag()
    lag.heard({"t": 5, "u": 7, "removed": 9}, 10)
    assert math.isinf(lag.lag_s({"t": 5, "u": 6}, 10))
    assert lag.lag_s({"t": 5, "u": 7}, 10) == 0


def test_a_copy_at_the_end_of_a_shortened_log_has_no_lag() -> None:
    lag = Lag()
    lag.heard({"t": 100}, 10)
    assert math.isinf(lag.lag_s({"t": 40}, 11, {}))
    assert math.isinf(lag.lag_s({"t": 40}, 11, {"t": 50}))
    assert lag.lag_s({"t": 50}, 12, {"t": 50}) == 0


def test_a_log_that_goes_on_asks_for_no_more_than_the_checkpoint() -> None:
    lag = Lag()
    lag.heard({"t": 100}, 10)
    assert lag.lag_s({"t": 100}, 11, {"t": 900}) == 0
